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
    ("errors", "version", "redact", "words", "env_names", "host", "slurm"),
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

# Folders that import each other. Every entry says why; a list may only get shorter.
CIRCLES: dict[str, set[frozenset[str]]] = {
    # Metrics of all reports take merged segments and aligned clocks from `run`, which builds on metrics of
    # one report; the NVTX reader finds a launch with a metric's index. They become layers when a row of the
    # report has one model.
    "rlprof_ops.analyze": {frozenset({"metrics", "readers", "run"})},
}

# Statements (nodes of the syntax tree, so that breaking or joining lines changes nothing) that a room holds
# at most. The comment says what today's features fit in.
BUDGET = {
    "(root)": 195,
    "host": 1121,  # host, job and slurm: 1,600
    "job": 749,
    "slurm": 287,
    "redact": 517,
    "request": 1335,  # 1,100
    "backends": 2512,  # 1,300
    "window": 320,  # 700
    "trainers": 2815,  # 2,300
    "runtime": 2842,  # 2,000
    "rayenv": 531,  # 900
    "collect": 3263,  # 2,600
    "supervisor": 3609,  # 2,200
    "recorder": 1749,  # 1,500
    "submit": 457,  # submit, operate and commands: 2,600
    "operate": 1448,
    "commands": 1130,
    "analyze": 8940,  # 7,600
    "doctor": 713,  # doctor, submitit_job and demo: 1,700
    "submitit_job": 717,
    "demo": 622,
}

# What every folder of a trainer or backend has: there a file's name is its part in the plugin.
PLUGIN_FOLDERS = ("backends", "trainers")
PLUGIN_PARTS = {
    "adapter",
    "check",
    "dialect",
    "doctor",
    "import_config",
    "names",
    "options",
    "placement",
    "reader",
    "recorder",
    "render",
    "wrap",
}
# In how many folders a file name stands for something of its own.
FILES_OF_ONE_NAME = {
    "attach": 2,
    "capture": 2,
    "clean": 2,
    "counters": 2,
    "dashboard": 2,
    "diff": 2,
    "finding": 2,
    "follow": 2,
    "gpu": 2,
    "harvest": 2,
    "host": 2,
    "job_state": 2,
    "logs": 2,
    "machine": 2,
    "model": 2,
    "names": 4,
    "node": 2,
    "processes": 2,
    "render": 3,
    "rollout": 2,
    "runs": 2,
    "schema": 2,
    "status": 2,
    "steps": 4,
    "stop": 3,
    "task": 2,
    "windows": 2,
    "wrap": 2,
}
# In how many files a public class name stands for something of its own.
CLASSES_OF_ONE_NAME = {
    "Capture": 2,
    "Finding": 3,
    "Member": 2,
    "NodeRecord": 2,
    "Report": 2,
    "Told": 2,
    "Window": 2,
}


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
    assert found == CIRCLES


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
    """The list is exact, so that it gets shorter with the names."""
    places: dict[str, set[str]] = defaultdict(set)
    for file in MODULES.values():
        inner = file.relative_to(PACKAGE).parts
        part = len(inner) == 3 and inner[0] in PLUGIN_FOLDERS and file.stem in PLUGIN_PARTS
        places[file.stem].add("a plugin's part" if part else "/".join(inner[:-1]))
    assert several(places, but={"__init__", "__main__"}) == FILES_OF_ONE_NAME


def test_a_public_class_name_stands_for_one_thing() -> None:
    """The list is exact, so that it gets shorter with the names."""
    places: dict[str, set[str]] = defaultdict(set)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(module)
    assert several(places) == CLASSES_OF_ONE_NAME


def several(places: dict[str, set[str]], but: Collection[str] = ()) -> dict[str, int]:
    return {name: len(where) for name, where in places.items() if len(where) > 1 and name not in but}
