"""The floors of the house: a room imports only from its own floor and from those below, no file and no
folder is in a circle, a room keeps to its budget of statements, and a name stands for one thing.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from itertools import takewhile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "python" / "rlprof_ops"
FLOORS = (
    ("check_result", "errors", "extras", "version", "redact", "words", "env_names", "host", "slurm"),
    ("backends",),
    ("request",),
    ("job", "window"),
    ("runtime",),
    ("trainers",),
    ("collect", "rayenv", "recorder"),
    ("analyze", "submit", "supervisor"),
    ("operate", "submitit_job", "demo"),
    ("doctor",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MOST_FILES = 14

# Statements (nodes of the syntax tree, so that breaking or joining lines changes nothing) that a room holds
# at most. The comment says what today's features fit in.
BUDGET = {
    "(root)": 310,  # a doctor's line, an installed version, yes and no, names (3), errors as text (4)
    "host": 1431,  # host, job and slurm: 1,600; storage, cgroups, logs (36), our threads (58), signals (103)
    "job": 978,  # and run.json, exit codes, site (12), node folders (6), Python (36), ids (19), numbers (10)
    "slurm": 319,  # and host's commands, GPUs (4), which step (8), KillWait (5), limits (9), filters (4)
    "redact": 645,  # and secrets in binary reports, new and ended processes (22), lines of any length (14)
    "request": 1723,  # 1,100; what a GPU refuses, windows in a step, by output, waiting (48), keys twice (9)
    "backends": 3270,  # 1,300; CUDA, doctor, inner workers, captures, exports, endings, forks (45)
    "window": 1062,  # 700; windows inside a step, room on the disk (44), no secrets (33), unsaved (7)
    "trainers": 3911,  # 2,300; who leads, requests of vLLM, SGLang (66), ROLL, attempts (29), Hydra (48)
    "runtime": 3958,  # 2,000; launchers, Ray tasks, groups, what a program gives, images (177), SIGTERM (188)
    "rayenv": 899,  # 900; a patched Ray, rlprof wrap, env (14), reports without secrets (101), notes (5)
    "collect": 3830,  # 2,600; harvests in time (47), two at once (100), asked meanwhile (64), storage (2)
    "supervisor": 3938,  # 2,200; steps from output (240), Ray in a hang (70), full disks, limits moved (9)
    "recorder": 2876,  # 1,500; what stands, links, XIDs, full disks, windows left (64), words (9)
    "submit": 542,  # submit, operate, commands: 2,600; what a requeued job still takes (55), secrets (17)
    "operate": 1861,  # and the rank that failed first (48), tables, findings as spans, killed runs (7)
    "commands": 1315,  # what is converted, rlprof run (15), hang, names as text (9), when a harvest ends
    "analyze": 12967,  # 7,600; requests, hangs, FLOPs, rows (118), dumps, bounds (112), clocks (42)
    "doctor": 615,  # doctor, submitit_job and demo: 1,700; the kernel's autogroups (13), late nodes (71)
    "submitit_job": 867,  # and what a site names and ray.sub keeps, orders and requeues (50), salvage (91)
    "demo": 625,  # the run folder is named by job.attempt
}

# What every folder of a trainer or backend has: there a file's name is its part in the plugin.
PLUGIN_FOLDERS = ("backends", "trainers")
PLUGIN_PARTS = {"adapter", "dialect"}


def module_of(file: Path) -> str:
    """The dotted name of a file of the package."""
    parts = ("rlprof_ops", *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in MODULES.items()}


def imports(module: str, *, types: bool) -> Iterator[str]:
    """Every module of the package that a module imports, lazy imports in functions too; those for types alone
    if `types`.
    """
    todo: list[ast.AST] = [TREES[module]]
    while todo:
        node = todo.pop()
        if (
            not types
            and isinstance(node, ast.If)
            and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        ):
            todo.extend(node.orelse)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "rlprof_ops")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import"
            if node.module and node.module.partition(".")[0] == "rlprof_ops":
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield full if full in MODULES else node.module
        else:
            todo.extend(ast.iter_child_nodes(node))


def room_of(module: str) -> str:
    return (*module.split("."), "")[1]


@pytest.mark.parametrize("module", [name for name in MODULES if name != "rlprof_ops"])
def test_imports_point_down(module: str) -> None:
    above = [
        name
        for name in imports(module, types=True)
        if name != "rlprof_ops" and FLOOR[room_of(name)] > FLOOR[room_of(module)]
    ]
    assert not above, (
        f"{module} is on floor {FLOOR[room_of(module)]} and imports from above: {', '.join(above)}"
    )


def test_no_file_is_in_a_circle() -> None:
    """Imports inside functions count: a circle that only works late is one all the same."""
    graph = {name: set(imports(name, types=False)) - {name, "rlprof_ops"} for name in MODULES}
    assert not circle(graph), " -> ".join(circle(graph))


def folder_of(module: str) -> tuple[str, ...]:
    parts = module.split(".")
    is_folder = module in MODULES and MODULES[module].name == "__init__.py"
    return tuple(parts if is_folder else parts[:-1])


def folders_beside() -> dict[str, dict[str, set[str]]]:
    """Of every folder: which of the folders in it imports which others of them, whatever the depth of the
    files."""
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module in MODULES:
        here = folder_of(module)
        for name in imports(module, types=True):
            there = folder_of(name)
            shared = sum(
                1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(here, there, strict=False))
            )
            if shared < len(here) and shared < len(there):
                graphs[".".join(here[:shared])][here[shared]].add(there[shared])
    return graphs


def test_no_folder_is_in_a_circle() -> None:
    """At any depth, imports inside functions and for types alone included."""
    found = {}
    for folder, graph in folders_beside().items():
        rings = set(circles(graph))
        if rings:
            found[folder] = rings
    assert found == {}


def circles(graph: dict[str, set[str]]) -> Iterator[frozenset[str]]:
    """Every largest set of nodes each of which reaches all others."""
    reached = {name: reachable(graph, name) for name in graph}
    for name in graph:
        ring = {other for other in reached[name] if name in reached.get(other, ())}
        if len(ring) > 1:
            yield frozenset(ring)


def reachable(graph: dict[str, set[str]], name: str) -> set[str]:
    done: set[str] = set()
    todo = [name]
    while todo:
        new = graph.get(todo.pop(), set()) - done
        done |= new
        todo.extend(new)
    return done


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of a graph, or nothing."""
    done: set[str] = set()
    path: list[str] = []

    def walk(name: str) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        path.append(name)
        for other in sorted(graph.get(name, ())):
            found = walk(other)
            if found:
                return found
        path.pop()
        done.add(name)
        return []

    for name in sorted(graph):
        found = walk(name)
        if found:
            return found
    return []


def test_circles_are_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert set(circles({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {frozenset("bc")}
    assert set(circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})) == set()


def test_no_room_is_crowded() -> None:
    counts = Counter(file.parent for file in MODULES.values() if file.name != "__init__.py")
    crowded = {
        str(folder.relative_to(PACKAGE)): n
        for folder, n in counts.items()
        if n > MOST_FILES and folder.name != "commands"
    }
    assert not crowded


def test_a_room_keeps_to_its_budget() -> None:
    weight: Counter[str] = Counter()
    for name, tree in TREES.items():
        inner = MODULES[name].relative_to(PACKAGE).parts
        weight[inner[0] if len(inner) > 1 else "(root)"] += sum(
            isinstance(node, ast.stmt) for node in ast.walk(tree)
        )
    over = [
        f"{room} holds {count} statements, its budget is {BUDGET.get(room, 0)}"
        for room, count in sorted(weight.items())
        if count > BUDGET.get(room, 0)
    ]
    assert not over, (
        f"{'; '.join(over)}. A feature pays for its statements: raise the budget in its own commit and say"
        " why"
    )
    assert not BUDGET.keys() - weight.keys(), "a room is gone: its budget goes too"


def test_a_file_name_stands_for_one_thing() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for file in MODULES.values():
        inner = file.relative_to(PACKAGE).parts
        part = len(inner) == 3 and inner[0] in PLUGIN_FOLDERS and file.stem in PLUGIN_PARTS
        places[file.stem].add("a plugin's part" if part else "/".join(inner[:-1]))
    assert not several(places, but={"__init__", "__main__"})


def test_a_public_class_name_stands_for_one_thing() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(module)
    assert not several(places)


def several(places: dict[str, set[str]], but: Collection[str] = ()) -> dict[str, int]:
    return {name: len(where) for name, where in places.items() if len(where) > 1 and name not in but}
