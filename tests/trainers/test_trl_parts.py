"""Windows inside steps of TRL's GRPOTrainer, its script unchanged, by each backend, with load beside it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof_ops.collect.harvest.manifest import Manifest
from tests.trainers import environments, runs

pytestmark = [pytest.mark.trainers, pytest.mark.long, pytest.mark.nsys, pytest.mark.timeout(900)]
REQUEST = """
captures:
  - {backend: torch, workers: ["*"], steps: "2, 4", at: generation+1s, for: 1s}
  - {backend: memory, workers: ["*"], steps: "2, 4", at: generation+1s, for: 1s, options: {host: true}}
  - {backend: nsight, workers: ["*"], steps: "2, 4", at: train+500ms, for: 1s, options: {t: nvtx}}
"""
AT_S = {"torch": 1.0, "memory": 1.0, "nsight": 0.5}  # no range begins in `generate`, and nsys would have none
LONG_STEPS = ("gradient_accumulation_steps=32", "max_completion_length=400")  # of 8 s, 6 s of them generation


def test_each_window_holds_its_second(tmp_path: Path) -> None:
    if why := environments.lacking("trl"):
        pytest.skip(why)
    (tmp_path / "profile.yaml").write_text(REQUEST)
    run = runs.trainer_run(
        "trl",
        work=tmp_path,
        steps=4,
        env={"RLPROF_REQUEST": str(tmp_path / "profile.yaml")},
        overrides=LONG_STEPS,
    )
    argv = [sys.executable, "-m", "rlprof_ops", "wrap", "--", *run.argv]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        subprocess.run(argv, cwd=run.cwd, env=run.environment(), timeout=600, check=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    [manifest] = tmp_path.rglob("manifest.json")
    captures = Manifest.load(manifest.parent).captures
    assert {(each.backend, each.start) for each in captures} == {
        (backend, step) for backend in AT_S for step in (2, 4)
    }
    for each in captures:
        assert each.state == "ok" and each.report is not None, each.reason
        begin_s, end_s = each.taken_s
        print(f"{each.backend} step {each.start}: {begin_s:.3f} to {end_s:.3f} s")
        assert begin_s == pytest.approx(AT_S[each.backend], abs=0.5)
        assert end_s == pytest.approx(AT_S[each.backend] + 1, abs=0.5)
        if each.backend == "torch":
            with gzip.open(manifest.parent / each.report) as packed:
                events = json.load(packed)["traceEvents"]
            operators = [event for event in events if event.get("cat") == "cpu_op"]
            began = [event["ts"] / 1e6 for event in operators]
            assert max(began) - min(began) == pytest.approx(end_s - begin_s, abs=0.5)
            assert not any("Backward" in event["name"] for event in operators)
