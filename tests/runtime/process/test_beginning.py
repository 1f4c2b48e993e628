"""What a selected worker tells when it begins: that it did, or why it runs without nsys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.collect.event_logs import Notes, read_node
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.job.knobs import python_path
from rlprof_ops.request import request_from_dict
from rlprof_ops.runtime.process import beginning

REQUEST = request_from_dict(
    {
        "captures": [
            {"backend": "nsight", "workers": ["*"], "steps": "2,4:6"},
            {"backend": "torch", "workers": ["*"], "steps": "9"},
        ]
    }
)
# A worker of Ray whose trainer calls nothing of ours, and its child.
WORKER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"


def begin(
    node_dir: Path, program: str = "default_worker.py", **variables: str
) -> tuple[list[tuple[Any, ...]], Notes]:
    """Run one; what its node knows afterwards."""
    script = node_dir / program
    script.write_text(WORKER)
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": python_path(None),
        "RLPROF_NODE_DIR": str(node_dir),
        "RLPROF_WORKER": "actor",
        "RLPROF_RANK": "3",
        "RLPROF_REQUEST_JSON": REQUEST.to_json(),
        **variables,
    }
    subprocess.run([sys.executable, str(script)], env=env, check=True, timeout=60)
    logs = [
        (log.worker, log.rank, [(event.event, event.start, event.reason) for event in log.windows])
        for log in read_node(node_dir / "events")
    ]
    notes = Notes()
    with ContainedDir(node_dir) as tree:
        notes.read(tree, "events")
    return logs, notes


def test_a_worker_that_nsys_did_not_begin_says_so_for_each_window(tmp_path: Path):
    logs, notes = begin(tmp_path, RLPROF_NOT_WRAPPED="nsys launch hung")
    assert logs == [("actor", 3, [("failed", 2, "nsys launch hung"), ("failed", 4, "nsys launch hung")])]
    assert not notes.begun


def test_a_command_says_itself_what_its_adapter_could_not_have(tmp_path: Path):
    leads = {"RLPROF_LEADS": "1", "RLPROF_WORKER": "driver"}
    assert begin(tmp_path, "train.py", RLPROF_NOT_WRAPPED="no nsys", **leads)[0] == []


@pytest.mark.parametrize(
    ("variables", "begun"),
    [
        ({"RLPROF_NSYS_SESSION": "s-1"}, {("actor", 3)}),
        ({}, {("actor", 3)}),  # selected for torch or memory alone
        ({"RLPROF_NSYS_SESSION": "s-1", "RLPROF_SESSION_PID": "1:s-1"}, set()),
    ],
)
def test_a_worker_that_begins_as_it_should_says_that(
    tmp_path: Path, variables: dict[str, str], begun: set[tuple[str, int]]
):
    logs, notes = begin(tmp_path, **variables)
    assert (logs, notes.begun) == ([], begun)
    assert (tmp_path / "sessions" / "s-1.json").exists() == (
        "RLPROF_NSYS_SESSION" in variables and bool(begun)
    )


def test_who_was_created_is_noted_where_it_has_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    for key in ({"worker": "actor", "rank": 1}, {"worker": "actor", "rank": None}, {}):
        beginning.selected(key)
    [notes] = (tmp_path / "events").iterdir()
    [line] = notes.read_text().splitlines()
    assert json.loads(line)["worker"] == "actor"
