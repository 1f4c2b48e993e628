"""A job that starts again after a requeue: what earlier attempts brought home is asked of nobody again."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from tests.supervisor.one_node import OneNode

from rlprof_ops.collect.harvest.manifest import CaptureResult, Manifest
from rlprof_ops.request import request_from_json

ASKED = {"RLPROF_STEPS": "2, 5", "RLPROF_WORKERS": "w", "RLPROF_BACKEND": "torch"}
NEMO_RLS = {"NRL_NSYS_PROFILE_STEP_RANGE": "2:3", "NRL_NSYS_WORKER_PATTERNS": "w"}
TELL = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"


@pytest.mark.parametrize(("home", "left"), [([2], ["5"]), ([2, 5], [])])
def test_what_is_home_is_not_asked_again(home: list[int], left: list[str], tmp_path: Path) -> None:
    first = f"local-{os.getpid()}-1"
    before = tmp_path / f"{first}-logs"
    before.mkdir()
    states = {step: "ok" if step in home else "missing" for step in (2, 5)}
    rows = (
        CaptureResult(f"torch/w/{step}", "torch", "w", 0, step, step + 1, None, state)
        for step, state in states.items()
    )
    (before / "manifest.json").write_text("".join(Manifest("1", tuple(rows), ()).lines()))
    told = tmp_path / "told.json"
    command = shlex.join([sys.executable, "-c", TELL, str(told)])
    node = OneNode.start(
        tmp_path, job=f"{first}.r1", COMMAND=command, RLPROF_EARLIER_ATTEMPTS="0", RLPROF_REQUEST_JSON="",
        **ASKED, **NEMO_RLS,
    )  # fmt: skip
    try:
        code = node.code()
        env = json.loads(told.read_text())
        assert [str(spec.steps) for spec in request_from_json(env["RLPROF_REQUEST_JSON"]).captures] == left
        assert not {"RLPROF_EARLIER_ATTEMPTS", *NEMO_RLS} & env.keys()
        assert [capture.start for capture in node.manifest().captures] == [int(step) for step in left]
        record = json.loads((node.run.path / "run.json").read_text())
        assert f"{len(home)} of 2 captures home" in record["request_notes"][-1]
        assert code == 0
    finally:
        node.end()
