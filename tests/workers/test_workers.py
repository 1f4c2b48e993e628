"""A small project with the checkout's own conftest, run by the real pytest and the real pytest-xdist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers import shares

pytestmark = pytest.mark.whole

HOME = Path(__file__).parents[2]
pytest.importorskip("xdist")

CONFTEST = """
import pytest
from tests.conftest import *
from tests.conftest import leaves_the_environment_as_it_was, pytest_configure, pytest_collectreport
from tests.conftest import pytest_runtest_logreport, pytest_runtest_setup, pytest_sessionfinish
from tests.conftest import pytest_terminal_summary
from tests import needs

needs.PARTS["slurm"] = needs.PARTS["ray"] = lambda: ""
needs.PARTS["fuse"] = lambda: "no /dev/fuse here"
needs.lacking.cache_clear()

@pytest.fixture(autouse=True)
def note(request):
    import os, time
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    with open(request.config.rootpath / "order", "a") as order:
        order.write(f"{worker} {request.node.name}\\n")
    yield
    time.sleep(0.05)  # both workers have a part in it

@pytest.fixture(scope="module")
def made(request):
    with open(request.config.rootpath / "made", "a") as made:
        made.write(request.module.__name__ + "\\n")
"""
FILES = {
    "test_a.py": """
import pytest
@pytest.mark.parametrize("n", range(6))
def test_pure(made, n): pass
@pytest.mark.slurm
def test_first(): pass
def test_mail(): pass
""",
    "test_b.py": """
import pytest
@pytest.mark.parametrize("who", ["me@here", "you"])
def test_parameter(made, who): pass
def test_no_fuse(need): need("fuse")
def test_no_fuse_again(need): need("fuse")
""",
    "test_c.py": """
import pytest
pytestmark = pytest.mark.ray
def test_second(): pass
def test_third(): pass
""",
    "test_z.py": """
import pytest
@pytest.mark.ray
@pytest.mark.share("environments")
def test_build(): pass
""",
    "test_d.py": "import pytest\npytest.importorskip('nothing_of_this_name')\ndef test_never(): pass\n",
}


def run(folder: Path, *words: str, require: str = "", tier: str = "", **files: str) -> tuple[int, str]:
    """pytest's exit status and what it says."""
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {HOME} {HOME / 'python'}\naddopts = -ra --import-mode=importlib\n"
        "markers =\n  slurm\n  ray\n  fuse\n  share(name)\n"
    )
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in (FILES | {f"{name}.py": text for name, text in files.items()}).items():
        (folder / name).write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLPROF_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, "."],
        cwd=folder, env=kept | {"RLPROF_TESTS_REQUIRE": require, "RLPROF_TESTS": tier, "COLUMNS": "200"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def order(folder: Path) -> dict[str, list[str]]:
    """Worker -> its tests, in their order."""
    found: dict[str, list[str]] = {}
    for line in (folder / "order").read_text().splitlines():
        worker, _, name = line.partition(" ")
        found.setdefault(worker, []).append(name)
    return found


def test_a_worker_has_the_sandbox_one_the_machine_and_the_person_sees_what_one_process_would_say(tmp_path):
    status, said = run(tmp_path, "-n", "2")

    assert status == 0, said
    by_worker = order(tmp_path)
    [sandbox] = [worker for worker, names in by_worker.items() if "test_first" in names]
    assert by_worker[sandbox][0] == "test_first"
    [other] = set(by_worker) - {sandbox}
    assert by_worker[other][0] == "test_build"
    [machine] = [names for names in by_worker.values() if "test_second" in names]
    assert machine[machine.index("test_second") :][:2] == ["test_second", "test_third"]
    assert sorted((tmp_path / "made").read_text().split()) == ["test_a", "test_b"]  # once a module

    lines = said.rstrip().splitlines()
    assert re.search(r"\b13 passed, 3 skipped\b", lines[-1]), said
    assert lines[-2] == "2 skipped, fuse: no /dev/fuse here"
    assert "missing parts of the test machine" in lines[-3]
    assert re.search(r"^\[100%\] gw[01] ", said, re.MULTILINE)
    assert re.search(r"^\[ *\d+%\] gw[01] passed +\d\.\d s  test_c\.py::test_third$", said, re.MULTILINE)
    assert re.search(
        r"^\[ *\d+%\] gw[01] passed +\d\.\d s  test_b\.py::test_parameter\[me@here\]$", said, re.MULTILINE
    )
    assert re.search(r"^\[ *\d+%\] gw[01] skipped +\d\.\d s  test_b\.py::test_no_fuse$", said, re.MULTILINE)


def test_in_the_quick_tier_what_uses_this_machine_begins_first(tmp_path):
    status, said = run(tmp_path, "-n", "2", tier="quick")

    assert status == 0, said
    assert "test_second" in [names[0] for names in order(tmp_path).values()]


def test_with_three_workers_each_of_the_long_shares_begins_at_once(tmp_path):
    status, said = run(tmp_path, "-n", "3")

    assert status == 0, said
    assert {names[0] for names in order(tmp_path).values()} == {"test_first", "test_second", "test_build"}


def test_without_workers_nothing_differs(tmp_path):
    status, said = run(tmp_path)

    assert status == 0, said
    assert list(order(tmp_path)) == ["alone"]
    assert order(tmp_path)["alone"][6:8] == ["test_first", "test_mail"]
    lines = said.rstrip().splitlines()
    assert re.search(r"\b13 passed, 3 skipped\b", lines[-1]), said
    assert lines[-2] == "2 skipped, fuse: no /dev/fuse here"
    assert not re.search(r"\] gw\d", said)


def test_what_is_required_and_missing_fails_the_run_and_a_failure_is_told_with_its_id(tmp_path):
    broken = "import os, pytest\npytestmark = pytest.mark.slurm\ndef test_broken(): assert not 1\n"
    crash = "import os\ndef test_crash(): os._exit(3)\n"
    status, said = run(tmp_path, "-n", "2", require="all", test_e=broken, test_f=crash)

    assert status == 1, said
    summary = said[said.index("short test summary info") :]
    assert "FAILED test_e.py::test_broken - assert not 1" in summary
    assert "FAILED test_f.py::test_crash" in summary
    assert "FAILED test_b.py::test_no_fuse - Failed: fuse is required (RLPROF_TESTS_REQUIRE)" in summary
    lines = said.rstrip().splitlines()
    assert lines[-2].startswith("test_d.py:") and "nothing_of_this_name" in lines[-2]
    assert "required (RLPROF_TESTS_REQUIRE) and missing" in lines[-3]
    assert re.search(r"\b4 failed, 13 passed, 1 skipped\b", lines[-1]), said


@pytest.mark.parametrize(
    ("marks", "fixtures", "name"),
    [
        (["parametrize"], ["tmp_path"], ""),
        (["torch"], [], ""),
        (["torch", "ray"], [], "machine"),
        (["ray", "slurm"], [], "sandbox"),
        ([], ["slurm_sandbox"], "sandbox"),
        (["lane", "long"], ["lanes"], "sandbox"),
        (["ray", "trainers"], [], "trainers"),
        (["chromium"], ["wheel"], "wheel"),
        (["chromium"], [], "browser"),
    ],
)
def test_shares(marks: list[str], fixtures: list[str], name: str) -> None:
    assert shares.named(marks, fixtures) == name
