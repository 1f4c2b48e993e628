"""The flight recorder in a real job that goes wrong: a rank becomes slow, then the job stands still, and what
records it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox import Sandbox
from tests.waits import wait_until
from tests.whole_job.jobs import Job

from rlprof_ops.recorder import rows
from rlprof_ops.recorder.record_file import read_folder

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(1500)]
SLOW_FROM, HANG_AT, HANG_S = 12, 22, 10
REQUEST = {
    "captures": [
        {"backend": "torch", "workers": ["policy_worker"], "when": {"rank": "slow", "at_most": 1}},
        {"backend": "memory", "workers": ["policy_worker"], "when": {"hang": f"{HANG_S}s", "at_most": 1}},
    ]
}
COMMAND = (
    f"python -u -m rlprof_ops.demo --steps 30 --policy-workers 4 --slow-rank 1 --slow-from {SLOW_FROM}"
    f" --slow-ms 1500 --slow-phase ref_logprob --hang-at-step {HANG_AT}"
)
RANKS = [("controller", 0), ("generation_worker", 0), *(("policy_worker", rank) for rank in range(4))]


def findings(job: Job) -> list[dict[str, Any]]:
    path = job.run / "recorder" / "findings.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kill(job: Job, node: str, words: str) -> None:
    found = [process for process in job.sandbox.processes(node) if words in process.cmdline]
    assert found, f"no {words} on {node}"
    for process in found:
        os.kill(process.host_pid, signal.SIGKILL)


def status(job: Job) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rlprof_ops", "status", str(job.run)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr


def recorded_steps(folder: Path) -> dict[tuple[str, int], list[int]]:
    """What the node folders' records hold, by worker and rank."""
    found: dict[tuple[str, int], list[int]] = {}
    for node in folder.iterdir():
        for block in read_folder(node / "record"):
            names = block.names()
            for who, step, _, _ in rows.LAYOUT[rows.STEP][0].iter_unpack(block.sections.get(rows.STEP, b"")):
                found.setdefault(rows.parse_process(names[who])[:2], []).append(step)
    return found


def test_a_job_that_becomes_slow_and_then_stands_still(slurm: Sandbox, tmp_path: Path) -> None:
    request = slurm.shared / "recorder request.yaml"
    request.write_text(json.dumps(REQUEST))
    knobs = {"COMMAND": COMMAND, "RLPROF_REQUEST": str(request), "RAY_LOG_SYNC_FREQUENCY": "2"}
    job = Job.submit(slurm, nodes=2, **knobs)
    ended = lambda: job.sandbox.job(job.id).state.startswith(("FAIL", "CANC", "COMP"))  # noqa: E731

    def begun(step: int) -> bool:
        summary = job.run / "recorder" / "summary.json"
        return summary.exists() and json.loads(summary.read_text())["step"] >= step

    wait_until(lambda: begun(4), 300, job.say, pause_s=0.3, unless=ended)
    for node in ("n1", "n2"):
        kill(job, node, "rlprof_ops.recorder")

    stacks = lambda: list((job.run / "control").glob("hang-*.stacks/*.json"))  # noqa: E731
    wait_until(lambda: len(stacks()) >= len(RANKS), 300, job.say, pause_s=0.3, unless=ended)
    found = {finding["kind"]: finding for finding in findings(job)}
    slow, hang = found["slow_rank"], found["hang"]
    assert (slow["worker"], slow["ranks"], slow["phase"]) == ("policy_worker", [1], "ref_logprob")
    assert SLOW_FROM <= slow["step"] <= SLOW_FROM + 3, slow
    assert hang["step"] == HANG_AT and HANG_S <= hang["evidence"]["still_s"] < HANG_S + 30, hang
    told = [json.loads(path.read_text()) for path in stacks()]
    assert {(each["worker"], each["rank"]) for each in told} == set(RANKS)
    still = next(each["text"] for each in told if (each["worker"], each["rank"]) == ("policy_worker", 0))
    assert "_delay (rlprof_ops/demo/workers.py" in still, still

    wait_until(lambda: "the step clock stands still" in status(job), 90, lambda: status(job))
    assert job.sandbox.job(job.id).state == "RUNNING"

    # What both supervisors leave when they are killed, their recorders with them.
    time.sleep(2)
    for node in ("n2", "n1"):
        kill(job, node, "rlprof_ops.supervisor")
    job.wait()
    said = status(job)
    assert hang["text"] in said and f"at step {HANG_AT}" in said, said
    assert "was killed, exit code" in said and "told to end" not in said, said
    assert str(next(path.parent for path in stacks())) in said, said
    log = (job.run / "logs" / "head.log").read_text() + job.output
    assert log.count("the recorder ended with -9 while the job runs; starting it again") >= 1, log
    steps = recorded_steps(job.run / "nodes")
    assert sorted(steps) == sorted(RANKS)
    wrong = {who: told for who, told in steps.items() if told != list(range(1, HANG_AT))}
    assert not wrong, "\n".join(f"{who}: {told}" for who, told in wrong.items())

    named = sorted(path.name for path in job.run.glob("profiles/torch/policy_worker/*/[!.]*"))
    assert len(named) == 3 and all("_when-slow-rank_" in name for name in named), named
    assert any(name.startswith("policy_worker_rank1_") for name in named)
