"""The floors of the house: a room imports only from its own floor and from those below, and no file is in
a circle.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
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
SAME_NAME = {"__init__", "__main__"}


def module_of(file: Path) -> str:
    """The dotted name of a file of the package."""
    parts = ("rlprof_ops", *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imports(file: Path) -> Iterator[str]:
    """Every module of the package that a file imports, lazy imports in functions too, those for types
    alone not.
    """
    todo: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            todo.extend(node.orelse)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "rlprof_ops")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: relative import"
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
        for name in imports(MODULES[module])
        if name != "rlprof_ops" and FLOOR[room_of(name)] > FLOOR[room_of(module)]
    ]
    assert not above, (
        f"{module} is on floor {FLOOR[room_of(module)]} and imports from above: {', '.join(above)}"
    )


def test_no_file_is_in_a_circle() -> None:
    """Imports inside functions count: a circle that only works late is one all the same."""
    graph = {name: set(imports(file)) - {name, "rlprof_ops"} for name, file in MODULES.items()}
    assert not circle(graph), " -> ".join(circle(graph))


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


def test_no_room_is_crowded() -> None:
    counts = Counter(file.parent for file in MODULES.values() if file.name != "__init__.py")
    crowded = {
        str(folder.relative_to(PACKAGE)): n
        for folder, n in counts.items()
        if n > MOST_FILES and folder.name != "commands"
    }
    assert not crowded
