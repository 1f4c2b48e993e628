"""`Any` switches the type checker off, so two rooms hold it only where others decide a value's type."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "python" / "rlprof_ops"
# File: (uses of `Any`, why it may).
ALLOWED = {
    "runtime/compat/rlinf_profiler.py": (
        7,
        "a section of the trainer's YAML, which PyTorchProfilerConfig checks",
    ),
    "runtime/process/hooks.py": (55, "functions of trainers: what they take, return and are owned by"),
    "runtime/process/frames.py": (1, "variables of frames that are not ours"),
    "analyze/readers/nsys_tables.py": (2, "keys and values of nsys's own tables, of any SQLite type"),
    "analyze/report_model.py": (
        1,
        "what run.json says of the run; msgspec has a schema of Any, none of object",
    ),
    "runtime/compat/rlinf_profiler_config.py": (1, "the same section, as checked"),
}


def uses_of_any(source: str) -> int:
    """How often `Any` stands in a source, its import and texts left out; quoted annotations count."""
    tree = ast.parse(source)
    quoted = [
        found
        for node in ast.walk(tree)
        for found in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(found, ast.Constant) and isinstance(found.value, str)
    ]
    return sum(
        (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for part in (tree, *(ast.parse(text.value) for text in quoted))
        for node in ast.walk(part)
    )


@pytest.mark.parametrize("room", ["runtime", "analyze"])
def test_any_stands_only_where_it_has_a_reason(room: str) -> None:
    found = {
        str(file.relative_to(PACKAGE)): uses_of_any(file.read_text(encoding="utf-8"))
        for file in sorted((PACKAGE / room).rglob("*.py"))
    }
    allowed = {name: count for name, (count, _) in ALLOWED.items() if name.startswith(f"{room}/")}
    assert {name: count for name, count in found.items() if count} == allowed


def test_uses_are_counted() -> None:
    assert (
        uses_of_any("from typing import Any\nx: Any = 1\ndef f(a: 'list[Any]') -> dict[str, Any]: ...") == 3
    )
    assert uses_of_any("# Any\n'Any'\nAnyStr") == 0
