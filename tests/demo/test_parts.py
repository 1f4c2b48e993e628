"""Windows inside the demo's steps, by each backend, beside the demo's own clock: what their reports hold."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from tests.reports_held import held_by

from rlprof_ops.collect.harvest.manifest import CaptureResult, Manifest
from rlprof_ops.job.knobs import import_path

pytestmark = [
    pytest.mark.whole,
    pytest.mark.nsys,
    pytest.mark.ray,
    pytest.mark.torch,
    pytest.mark.timeout(700),
]
STEPS, WITHIN_S = 4, 0.5
BUSY = 3  # times slower than alone: Ray's own start makes it 2
# One generator makes the answers of both policy workers, one after the other: `generation` twice a step.
LEAST_MS = {"generation": 2000, "ref_logprob": 1500, "logprob": 1500, "train": 1500}
PHASES = {*LEAST_MS, "reward", "advantage", "weight_sync"}
MISSING = 3  # the exit code of a job that misses a planned capture
Phase = tuple[str, float, float]  # its name, begin and end in Unix seconds
MEMORY = {"backend": "memory", "options": {"host": True, "interval_ms": 10}}
NSIGHT = {"backend": "nsight", "options": {"t": "nvtx"}}
CAPTURES: dict[str, dict[str, Any]] = {
    # over the end of the first `generation`, and with memory's, two windows in one step of one process
    "nsight/generation_worker": {**NSIGHT, "steps": "2, 4", "at": "generation+1500ms", "for": "2s"},
    "memory/generation_worker": {**MEMORY, "steps": "2, 4", "at": "generation+2500ms", "for": "1s"},
    # at the bounds of a phase, where torch opens and closes; memory goes on when its phase is over
    "torch/policy_worker": {"backend": "torch", "steps": "2, 4", "at": "logprob", "for": "1400ms"},
    "memory/policy_worker": {**MEMORY, "steps": "2, 4", "at": "ref_logprob+1s", "for": "1s"},
    # of a step that is over before
    "memory/controller": {**MEMORY, "steps": "3", "at": "generation+1h", "for": "1s"},
}
ASKED_S = {
    "nsight/generation_worker": ("generation", 1.5, 3.5),
    "memory/generation_worker": ("generation", 2.5, 3.5),
    "torch/policy_worker": ("logprob", 0.0, 1.4),
    "memory/policy_worker": ("ref_logprob", 1.0, 2.0),
}


def test_each_window_holds_its_part_of_the_step(tmp_path: Path) -> None:
    request = [
        {"workers": [name.split("/")[1]], "ranks": [0], **capture} for name, capture in CAPTURES.items()
    ]
    (tmp_path / "request.json").write_text(json.dumps({"captures": request}))
    ours = ("SLURM", "RLPROF", "RAY_")
    env = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    env |= {
        "PYTHONPATH": import_path(),
        "RLPROF_REQUEST": str(tmp_path / "request.json"),
        "RLPROF_REPORT_SECONDS": "0",
        "RLPROF_RECORD": "0",
        "GPUS_PER_NODE": "0",
    }
    least = [word for phase, ms in LEAST_MS.items() for word in ("--least-ms", f"{phase}={ms}")]
    demo = ["-m", "rlprof_ops.demo", "--steps", str(STEPS), "--json", str(tmp_path / "own.json"), *least]
    argv = [sys.executable, "-m", "rlprof_ops", "run", "--", sys.executable, *demo]
    with Slowness() as slowness:
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == MISSING, done.stdout + done.stderr
    late_s = WITHIN_S * (slowness.most if slowness.most > BUSY else 1)
    own = own_clock(json.loads((tmp_path / "own.json").read_text()))
    [run] = tmp_path.glob("local-*-logs")
    captures = Manifest.load(run).captures
    assert {(f"{each.backend}/{each.worker}", each.start) for each in captures} == {
        (name, step) for name in CAPTURES for step in ((3,) if name == "memory/controller" else (2, 4))
    }
    [never] = [each for each in captures if each.worker == "controller"]
    assert never.state == "missing"
    assert re.fullmatch(r"step 3 ended after [\d.]+ s, before generation\+3600s", never.reason)
    for each in captures:
        if each is not never:
            holds_its_part(each, run, own[each.worker, each.start], tmp_path, late_s)


class Slowness:
    """How many times longer than alone a thread takes for its work here, in the worst second: so much later
    may a profiler begin and end too.
    """

    def __init__(self) -> None:
        self.most = 1.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Slowness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _measure(self) -> None:
        latest: deque[tuple[float, float]] = deque(maxlen=10)  # seconds, and those on a CPU
        while not self._over.wait(0.09):
            began, used = time.monotonic(), time.thread_time()
            while time.thread_time() < used + 0.01:
                pass
            latest.append((time.monotonic() - began, time.thread_time() - used))
            took, worked = map(sum, zip(*latest, strict=True))
            if len(latest) == latest.maxlen:
                self.most = max(self.most, took / worked)


def holds_its_part(capture: CaptureResult, run: Path, own: list[Phase], folder: Path, late_s: float) -> None:
    """The manifest has the time that was asked, by `late_s`, and the report what happened in the manifest's.
    `own`: the phases of its worker's step, by the demo.
    """
    phase, at_s, until_s = ASKED_S[f"{capture.backend}/{capture.worker}"]
    zero_s = next(begin_s for name, begin_s, _ in own if name == phase)
    began_s = [(name, begin_s - zero_s) for name, begin_s, _ in own]
    taken_s, closed_s = capture.taken_s
    if capture.backend == "torch":  # it closes where a range begins or ends
        bounds = [at - zero_s for _, *bounds_of in own for at in bounds_of]
        until_s = min(bound for bound in bounds if bound >= until_s)
    print(f"{capture.id}: asked {at_s} to {until_s:.3f} s by {late_s:.2f}, taken {taken_s} to {closed_s}")
    assert (taken_s, closed_s) == pytest.approx((at_s, until_s), abs=late_s)
    surely = {name for name, at in began_s if taken_s + WITHIN_S <= at <= closed_s - WITHIN_S}
    at_most = {name for name, at in began_s if taken_s - WITHIN_S <= at <= closed_s + WITHIN_S}
    if capture.state == "empty" and late_s > WITHIN_S and not surely:
        return
    assert capture.report is not None, (capture.id, capture.reason)
    held = held_by(capture.backend, run / capture.report, folder)
    first_s, last_s = held.first_s - zero_s, held.last_s - zero_s
    seen = held.names & PHASES
    print(f"{capture.id}: holds {first_s:.3f} to {last_s:.3f} s, {sorted(seen)}")
    assert taken_s - WITHIN_S <= first_s <= last_s <= closed_s + WITHIN_S
    if capture.backend == "memory":
        assert (first_s, last_s) == pytest.approx((taken_s, closed_s), abs=WITHIN_S)
    else:
        assert surely <= seen <= at_most


def own_clock(record: dict[str, Any]) -> dict[tuple[str, int], list[Phase]]:
    """The phases of a step in rank 0 of a worker, as the demo says itself, in Unix seconds."""
    found: dict[tuple[str, int], list[Phase]] = {}
    for worker in record["workers"]:
        for row in worker["times"] if worker["rank"] == 0 else ():
            if row["phase"] != "step":
                phase = row["phase"], row["start_ns"] / 1e9, row["end_ns"] / 1e9
                found.setdefault((worker["worker"], row["step"]), []).append(phase)
    return {key: sorted(phases, key=lambda phase: phase[1]) for key, phases in found.items()}
