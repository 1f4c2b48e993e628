"""The recorder in a real job on a local Ray: a rank that becomes slow is named and captured by itself, and
training does not notice that the recorder is killed.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.demo.local_job import run_local
from rlprof_ops.operate.recorded import headline, read_summary, tables
from rlprof_ops.recorder import rows
from rlprof_ops.recorder.record_file import read_folder

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.whole, pytest.mark.timeout(600)]

STEPS = 24
REQUEST = {
    "captures": [{"backend": "torch", "workers": ["policy_worker"], "when": {"rank": "slow", "at_most": 1}}]
}


def recorders(root: Path) -> list[int]:
    """Recorder processes of heads whose run folder lies below `root`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        mine = any(word.startswith(f"--run-dir={root}/".encode()) for word in words)
        if mine and b"rlprof_ops.recorder" in words:
            found.append(int(path.parent.name))
    return found


def test_a_slow_rank_is_captured_and_a_killed_recorder_goes_on(tmp_path: Path) -> None:
    command = [
        sys.executable, "-u", "-m", "rlprof_ops.demo", f"--steps={STEPS}", "--policy-workers=3",
        "--slow-rank=1", "--slow-ms=1000", "--slow-phase=ref_logprob",
    ]  # fmt: skip
    request = tmp_path / "profile.yaml"
    request.write_text(json.dumps(REQUEST))
    settings = {
        "COMMAND": shlex.join(command),
        "RLPROF_REQUEST": str(request),
        "RAY_LOG_SYNC_FREQUENCY": "2",
    }
    killed: list[int] = []

    def on_line(line: str) -> None:
        if line.split()[:2] == ["step", "5"]:
            threading.Thread(target=kill, daemon=True).start()

    def kill() -> None:
        for pid in recorders(tmp_path):
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    result = run_local(tmp_path, settings, on_line)
    assert result.exit_code == 0
    run = result.run.path
    log = (run / "logs" / "head.log").read_text()
    assert killed and "the recorder ended with -9 while the job runs; starting it again" in log

    manifest = Manifest.load(run)
    slow = [finding for finding in manifest.findings if finding["kind"] == "slow_rank"]
    assert [(finding["worker"], finding["ranks"], finding["phase"]) for finding in slow] == [
        ("policy_worker", [1], "ref_logprob")
    ]
    assert "found: policy_worker rank 1 is slow since step" in log
    assert f"on demand when-slow_rank-step{slow[0]['step']}-1: torch of policy_worker" in log
    taken = {report.rank for report in manifest.reports if report.worker == "policy_worker"}
    assert taken == {0, 1, 2}, "the slow one and two peers"

    steps = {}
    for node in (run / "nodes").iterdir():
        for block in read_folder(node / "record"):
            names = block.names()
            for who, step, _, _ in rows.LAYOUT[rows.STEP][0].iter_unpack(block.sections.get(rows.STEP, b"")):
                steps.setdefault(rows.parse_process(names[who])[:2], []).append(step)
    assert sorted(steps) == [
        ("controller", 0), ("generation_worker", 0), ("policy_worker", 0), ("policy_worker", 1),
        ("policy_worker", 2),
    ]  # fmt: skip
    assert all(told == list(range(1, STEPS + 1)) for told in steps.values()), steps

    shown = read_summary(run)
    assert f"step {STEPS}, 1 node," in headline(shown)[0]
    assert {"Roles", "Nodes", "Slowest ranks", "Found"} <= {table.title for table in tables(shown)}
    assert not recorders(tmp_path)
