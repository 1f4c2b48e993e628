"""Profiled runs of the demo and their reports, on this machine's own Ray."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[3]
FIRST, STEPS = 3, 8  # the window; the two steps before it warm up


@dataclass(frozen=True)
class Run:
    """`answer`: the report. `step_ns`: the mean of the profiled steps by the demo's own clock."""

    answer: dict[str, Any]
    step_ns: float


def demo(folder: Path, options: Sequence[str], seed: int = 0, steps: int = STEPS) -> Run:
    """Runs the demo with torch windows on all workers and reads its report.

    There is little to compute, so that what else runs on this machine changes the phases little: they last
    as long as the options say.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    last = FIRST + steps - 1
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RLPROF_", "NRL_", "RAY_"))} | {
        "PYTHONPATH": str(REPO / "python"),
        "RAY_AUTH_MODE": "disabled",
        "RLPROF_STEPS": f"{FIRST}:{last + 1}",
        "RLPROF_WORKERS": "*_worker",
        "RLPROF_BACKEND": "torch",
        "RLPROF_RUN_DIR": str(folder),
    }
    command = [sys.executable, "-m", "rlprof_ops.demo", "--address", "local", "--steps", str(last + 1)]
    command += [
        "--seed",
        str(seed),
        "--prompts",
        "2",
        "--epochs",
        "1",
        "--json",
        str(folder / "times.json"),
        *options,
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    from tests.analyze.as_data import answer_of

    record = json.loads((folder / "times.json").read_text())
    driver = next(w for w in record["workers"] if w["worker"] == "controller")
    lengths = [
        t["end_ns"] - t["start_ns"]
        for t in driver["times"]
        if t["phase"] == "step" and FIRST <= t["step"] <= last
    ]
    (folder / "times.json").unlink()
    return Run(answer_of(folder, jobs=1, cache=False, quiet=True), sum(lengths) / len(lengths))
