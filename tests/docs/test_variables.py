"""Every variable of ours in the code is a knob or stands in docs/contracts.md, and the other way round."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.typed import DOCUMENTS

from rlprof_ops import env_names
from rlprof_ops.job.knobs import read_knobs

HOME = Path(__file__).parents[2]
PACKAGE = HOME / "python" / "rlprof_ops"
_OURS = re.compile(r"\bRLPROF_[A-Z0-9_]*[A-Z0-9]\b")
NAMES = {value for name, value in vars(env_names).items() if name.isupper() and isinstance(value, str)}
KNOBS = set(read_knobs())
# Before the package's folder is known to be on the path, and so without the package's names.
WITHOUT_THE_PACKAGE = {"trainers/inject/sitecustomize.py"}
MISSPELT = {"RLPROF_STEP"}  # docs/request.md shows what becomes of it


def code() -> Iterator[Path]:
    yield HOME / "ray.sub"
    for folder in (PACKAGE, HOME / "scripts"):
        yield from sorted(file for file in folder.rglob("*") if file.suffix in (".py", ".sh"))


def documented() -> set[str]:
    return set(_OURS.findall((HOME / "docs" / "contracts.md").read_text()))


def literals(file: Path) -> Iterator[str]:
    """The texts of a file's code that are one of our names and nothing else."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _OURS.fullmatch(node.value):
            yield node.value


def test_every_name_in_the_code_is_a_knob_or_documented():
    known = KNOBS | documented()
    for file in code():
        unknown = set(_OURS.findall(file.read_text())) - known
        assert not unknown, f"{file}: neither in env/defaults.env nor in docs/contracts.md: {sorted(unknown)}"


def test_a_name_has_one_home():
    """A literal is a key of `Settings`, which knows its own names; everything else is in env_names."""
    for file in sorted(PACKAGE.rglob("*.py")):
        where = str(file.relative_to(PACKAGE))
        if where == "env_names.py" or where in WITHOUT_THE_PACKAGE:
            continue
        written = set(literals(file))
        assert not written & NAMES, f"{where}: take it from env_names: {sorted(written & NAMES)}"
        assert written <= KNOBS, f"{where}: {sorted(written - KNOBS)}"


def test_every_documented_name_is_read_somewhere():
    text = "\n".join(file.read_text() for file in code())
    read = set(_OURS.findall(text))
    others = [HOME / "Makefile", HOME / ".ci" / "run", *(HOME / "tests").rglob("*.py")]
    of_tests = set(_OURS.findall("\n".join(file.read_text() for file in others)))  # how tests are run
    for page in DOCUMENTS:
        gone = set(_OURS.findall(page.text)) - read - MISSPELT - of_tests
        assert not gone, f"{page.name}: nothing reads {sorted(gone)}"
    assert set(re.findall(r"\b[A-Za-z_]\w*\b", text)) >= KNOBS, "a knob that nothing reads"


def test_every_name_of_env_names_is_used():
    text = "\n".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    for name in (name for name in vars(env_names) if name.isupper()):
        assert re.search(rf"\benv_names\.{name}\b", text), name
