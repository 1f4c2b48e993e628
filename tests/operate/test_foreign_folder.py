"""A colleague's run folder that may not be read: one line with the path and its owner, for every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "python"
NOBODY = 65534
COMMANDS = [
    ("status",),
    ("logs",),
    ("logs", "--node", "0"),
    ("stop",),
    ("harvest",),
    ("report",),
    ("timeline",),
    ("retry",),
    ("attach", "--", "true"),
    ("dashboard",),
    ("stacks",),
    ("capture", "--workers", "w", "--steps", "next:1"),
]


def as_another(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """One command of rlprof by a user without root's right to read everything."""
    drop = "-dac_override,-dac_read_search"
    plain = ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}"] if os.getuid() == 0 else []
    return subprocess.run(
        [*plain, sys.executable, "-m", "rlprof_ops", *words],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCES), "HOME": "/nonexistent"},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


def close(path: Path) -> None:
    """Nobody else may read it, and it is somebody else's."""
    path.chmod(0o000)
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)


def open_again(path: Path) -> None:
    if os.getuid() == 0:
        os.chown(path, 0, 0)
    path.chmod(0o700)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words))
@pytest.mark.parametrize("closed", ["the folder", "its record", "its nodes"])
def test_one_line_says_whose_it_is(run_folder, tmp_path, words, closed):
    run_folder.record(cause="driver_exit", exit_code=0)
    run_folder.manifest(("policy_worker", 0, 3, 5, "ok"))
    path = {
        "the folder": run_folder.path,
        "its record": run_folder.path / "run.json",
        "its nodes": run_folder.path / "nodes",
    }[closed]
    close(path)
    try:
        before, after = words[:1], words[1:]
        done = as_another(*before, str(run_folder.path), *after, cwd=tmp_path)
    finally:
        open_again(path)
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rlprof: {path}: permission denied;")
    assert os.getuid() != 0 or "it belongs to nobody; ask for access" in line


def test_two_folders_of_which_one_may_not_be_read(run_folder, tmp_path):
    close(run_folder.path)
    done = as_another("diff", str(run_folder.path), str(tmp_path), cwd=tmp_path)
    open_again(run_folder.path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1 and "permission denied" in done.stderr, done.stderr


def test_a_list_leaves_out_what_may_not_be_read_and_counts_it(run_folder, tmp_path):
    run_folder.record(cause="driver_exit", exit_code=0)
    beside = run_folder.path.parent / "4712-logs"
    beside.mkdir()
    close(beside)
    try:
        done = as_another("ps", str(run_folder.path.parent), cwd=tmp_path)
    finally:
        open_again(beside)
    assert done.returncode == 0 and "4711 " in done.stdout, done.stdout + done.stderr
    assert done.stderr == f"left out, since they may not be read, 1 folder: {beside}\n"


def test_a_folder_that_takes_no_report_hides_no_answer(run_folder, tmp_path):
    pytest.importorskip("msgspec")
    from tests.analyze.fake_run import make_run

    make_run(run_folder.path, ranks=1, steps=(3,))
    run_folder.record(cause="driver_exit", exit_code=0)
    run_folder.path.chmod(0o555)
    try:
        done = as_another("report", str(run_folder.path), cwd=tmp_path)
    finally:
        run_folder.path.chmod(0o755)
    assert done.returncode == 1 and "GPUs over their captures" in done.stdout, done.stdout + done.stderr
    assert "cannot write the report (Permission denied). Give another folder with --output." in done.stderr
    assert done.stderr.count("\n") == 1
