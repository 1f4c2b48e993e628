"""How the package's functions speak: who raises says so, and only tables are laid out by hand."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "python" / "rlprof_ops"
FILES = sorted(PACKAGE.rglob("*.py"))
# A command's docstring is its help text, and its errors are what a person reads.
HELP_TEXTS = ("cli.py", "commands/")
NO_EVENT = {"AssertionError", "NotImplementedError", "SystemExit", "StopIteration"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def public(node: ast.AST, name: str = "", doc: str = "") -> Iterator[tuple[str, Function, str]]:
    """Every public function with its dotted name, and the docstring of its class."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public(child, f"{name}{child.name}.", ast.get_docstring(child) or "")
        elif isinstance(child, Function) and (child.name == "__init__" or not child.name.startswith("_")):
            yield f"{name}{child.name}", child, doc


def raised(node: ast.AST, handled: frozenset[str] = frozenset()) -> set[str]:
    """The classes that a body raises itself, and does not handle."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*Function.__args__, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, ast.Try):
            own = handled | {name for one in child.handlers if one.type for name in names(one.type)}
            for part in child.body:
                found |= raised(ast.Module([part], []), own)
            for rest in (*child.handlers, *child.orelse, *child.finalbody):
                found |= raised(ast.Module([rest], []) if isinstance(rest, ast.stmt) else rest, handled)
            continue
        if isinstance(child, ast.Raise) and child.exc is not None:
            error = child.exc.func if isinstance(child.exc, ast.Call) else child.exc
            found |= {one for one in names(error) if one[0].isupper()} - handled
        found |= raised(child, handled)
    return found


def names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Tuple):
        return [name for one in node.elts for name in names(one)]
    return [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []


def is_said(error: str, doc: str) -> bool:
    """Whether a docstring names a class of error, or one that it is."""
    known = getattr(builtins, error, None)
    bases = [base.__name__ for base in known.__mro__[:-3]] if isinstance(known, type) else []
    return any(name in doc for name in (error, *bases))


def test_who_raises_says_so() -> None:
    silent = [
        f"{file.relative_to(PACKAGE)}:{function.lineno} {name}: {error}"
        for file in FILES
        if not str(file.relative_to(PACKAGE)).startswith(HELP_TEXTS)
        for name, function, of_class in public(ast.parse(file.read_text(encoding="utf-8")))
        for error in sorted(raised(function) - NO_EVENT)
        if not is_said(error, (ast.get_docstring(function) or "") + of_class)
    ]
    assert not silent, "raised and not in the docstring:\n" + "\n".join(silent)


def test_only_tables_are_laid_out_by_hand() -> None:
    """`fmt: skip` stands behind a statement that holds a table: a literal of several rows or members."""
    loose = []
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        ends = {number for number, line in enumerate(text.splitlines(), 1) if "# fmt: skip" in line}
        tables = {
            node.end_lineno
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Call, ast.ImportFrom))
            and node.end_lineno != node.lineno
        }
        loose += [f"{file.relative_to(PACKAGE)}:{end}" for end in sorted(ends - tables)]
    assert not loose


def test_errors_are_found() -> None:
    body = "def f():\n    try:\n        raise ValueError\n    except ValueError:\n        raise KeyError(1)\n"
    assert raised(ast.parse(body).body[0]) == {"KeyError"}
    assert is_said("PermissionError", "Raises OSError.") and not is_said("ValueError", "Raises OSError.")
