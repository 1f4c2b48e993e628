"""Profiled runs of the demo and their reports, on this machine's own Ray."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.analyze.as_data import answer_of
from tests.bench.harness import environment, spend

FIRST, STEPS = 3, 8  # the window; the two steps before it warm up


@dataclass(frozen=True)
class DemoRun:
    """`answer`: the report. `step_ns`: the mean of the profiled steps by the demo's own clock."""

    answer: dict[str, Any]
    step_ns: float


def demo(folder: Path, options: Sequence[str], seed: int = 0, steps: int = STEPS) -> DemoRun:
    """Runs the demo with torch windows on all workers and reads its report.

    There is little to compute, so that what else runs on this machine changes the phases little: they last
    as long as the options say.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    last = FIRST + steps - 1
    env = environment(
        {
            "RAY_AUTH_MODE": "disabled",
            "RLPROF_STEPS": f"{FIRST}:{last + 1}",
            "RLPROF_WORKERS": "*_worker",
            "RLPROF_BACKEND": "torch",
            "RLPROF_RUN_DIR": str(folder),
        }
    )
    times = folder / "times.json"
    words = ["--address", "local", "--steps", str(last + 1), "--seed", str(seed), "--prompts", "2"]
    words += ["--epochs", "1", "--json", str(times), *options]
    spend([sys.executable, "-m", "rlprof_ops.demo", *words], env)
    record = json.loads(times.read_text())
    driver = next(w for w in record["workers"] if w["worker"] == "controller")
    lengths = [
        t["end_ns"] - t["start_ns"]
        for t in driver["times"]
        if t["phase"] == "step" and FIRST <= t["step"] <= last
    ]
    times.unlink()
    return DemoRun(answer_of(folder, jobs=1, cache=False, quiet=True), sum(lengths) / len(lengths))
