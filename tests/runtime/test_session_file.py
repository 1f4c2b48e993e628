"""Whose session it is, and who opens its windows, as the first Python process of a session tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof_ops.job.knobs import python_path
from rlprof_ops.runtime.process import session_file


@pytest.mark.parametrize(
    ("worker", "leads", "gate"),
    [
        ("actor", "", "supervisor"),
        ("driver", "1", "supervisor"),
        ("controller", "1", "nobody"),  # verl's controller is an actor that COMMAND creates
        ("trainer", "1", "nobody"),  # until TRL's adapter says that it is one
    ],
)
@pytest.mark.parametrize("inherited", ["", "1", "1:rlprof-7-actor-r0-12-1"])
def test_the_first_process_tells_and_its_children_do_not(
    tmp_path: Path, worker: str, leads: str, gate: str, inherited: str
):
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    code = f"import time; {child}; print(open('{tmp_path}/sessions/s-1.json').read()); time.sleep(0)"
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": python_path(None),
        "RLPROF_NODE_DIR": str(tmp_path),
        "RLPROF_NSYS_SESSION": "s-1",
        "RLPROF_WORKER": worker,
        "RLPROF_RANK": "3",
        "RLPROF_LEADS": leads,
        # As in a job that was submitted from inside a profiled process.
        "RLPROF_SESSION_PID": inherited,
    }
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60, capture_output=True)
    found = session_file.read(tmp_path / "sessions" / "s-1.json")
    assert found is not None and (found.worker, found.rank, found.gate) == (worker, 3, gate)
    assert len(list((tmp_path / "sessions").iterdir())) == 1
    assert not found.lives and session_file.read_all(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        '{"name": "s-1", "worker": "w", "rank": 0, "pid": "1/../1", "host": "h", "tmpdir": "/tmp"}',
        '{"name": "s-1", "worker": ["w"], "rank": 0, "pid": 1, "host": "h", "tmpdir": "/tmp"}',
        '{"name": "s-1"}',
        "[" * 100_000,
    ],
)
def test_a_file_that_says_no_session_is_none(tmp_path: Path, content: str):
    path = tmp_path / "s-1.json"
    path.write_text(content)
    assert session_file.read(path) is None


def test_a_fifo_keeps_no_supervisor_waiting(tmp_path: Path):
    os.mkfifo(tmp_path / "s-1.json")
    code = f"from rlprof_ops.runtime.process import session_file as s; s.read(s.Path('{tmp_path}/s-1.json'))"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path(None)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
