"""Which tests a tier takes, and that a run says what it leaves out: in a run of a few tests of every kind."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers

HOME = Path(__file__).parents[1]
CONFTEST = (
    "from tests.conftest import pytest_collection_modifyitems, pytest_configure, pytest_terminal_summary\n"
)
TESTS = """
import pytest
def test_unit(): pass
@pytest.mark.whole
def test_whole(): pass
@pytest.mark.slurm
def test_job(): pass
@pytest.mark.slurm
@pytest.mark.quick
def test_main_job(): pass
@pytest.mark.long
def test_long(): pass
"""


@pytest.mark.parametrize(
    ("tier", "passed", "left"),
    [
        ("quick", 2, ["2 left to `RLPROF_TESTS=all make test`", "1 left to `make test-all`"]),
        ("all", 4, ["1 left to `make test-all`"]),
        ("", 4, ["1 left to `make test-all`"]),
        ("long", 5, []),
    ],
)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_tier(tmp_path: Path, tier: str, passed: int, left: list[str], workers: str) -> None:
    done = run(tmp_path, tier, workers)

    lines = done.stdout.rstrip().splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in lines[-1]
    assert [line for line in lines if " left to " in line] == left


def test_a_word_that_is_no_tier(tmp_path: Path) -> None:
    done = run(tmp_path, "quik", "0")

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "RLPROF_TESTS='quik' is no tier of tests: quick, all, long" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("marks", "of_trainers", "first"),
    [
        ({"parametrize", "torch", "ray", "nsys"}, False, tiers.QUICK),
        ({"chromium"}, False, tiers.ALL),
        ({"chromium", "quick"}, False, tiers.QUICK),
        (set(), True, tiers.ALL),
        ({"trainers", "quick"}, True, tiers.QUICK),
        ({"lane", "long"}, False, tiers.LONG),
        ({"long", "quick"}, False, tiers.LONG),
    ],
)
def test_the_first_tier_that_takes_it(marks: set[str], of_trainers: bool, first: str) -> None:
    assert tiers.first_tier(marks, of_trainers=of_trainers) == first


def test_no_mark_of_a_file_stands_in_its_docstring() -> None:
    """There it marks nothing, and the file's tests are taken by a tier that should leave them out."""
    files = sorted((HOME / "tests").rglob("*.py"))
    assert len(files) > 300
    said = {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in files}
    assert [str(path) for path, text in said.items() if "pytestmark" in text] == []


def run(folder: Path, tier: str, workers: str) -> subprocess.CompletedProcess[str]:
    """pytest on TESTS in a folder of its own."""
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {HOME} {HOME / 'python'}\naddopts = --import-mode=importlib\n"
        "markers =\n  slurm\n  whole\n  long\n  quick\n"
    )
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_kinds.py").write_text(TESTS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLPROF_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", workers, "."],
        cwd=folder, env=kept | {"RLPROF_TESTS": tier, "COLUMNS": "200"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
