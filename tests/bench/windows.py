"""What an open window costs a training step, measured on the demo: off, ranges only, torch, nsys.

The method, which was fixed before the numbers were known:
- One demo run a mode, one policy worker and one generation worker, one thread each (OMP_NUM_THREADS=1); 4
  steps of warm-up.
- Then cycles of three steps: control (no window), window (a window of one step on the policy worker), after
  (no window; the report of the window before is still being written). The three lie within two seconds of
  each other, so slow drift of the machine is the same for all.
- Two times of each step: "work", the sum of the policy worker's phases by the demo's own clock; and "step",
  the whole step by the controller's clock, with opening and closing the window.
- The result is the median over all cycles of the paired differences window - control and after - control,
  with its 95 % interval (bootstrap over cycles, 10,000 draws). No cycle is left out.
- "off" is the same arithmetic where nothing was asked: its interval should hold 0, and says what the method
  can resolve.
- "ranges only" is a window of a process that is told that something records it all the time
  (RLPROF_NSYS_RANGE=none): windows open, steps and phases are NVTX ranges, and no tool is attached.

--pool FILE,FILE,…: one table of several such runs, from what their --json has written.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.bench.harness import Run, environment, spend

from rlprof_ops import rayenv
from rlprof_ops.collect.drain import drain_steps as drain
from rlprof_ops.request import load_request

NEEDS = ("ray", "torch")
QUICK = {"cycles": 2, "modes": ("off", "torch")}
WARM_UP = 4
CONTROL, WINDOW, AFTER = range(3)
TORCH = {"RLPROF_BACKEND": "torch"}
NSYS = {"RLPROF_BACKEND": "nsight", "RLPROF_OPTIONS": '{"t": "nvtx"}'}
MODES: dict[str, dict[str, str]] = {
    "off": {},
    "ranges only": {**NSYS, "RLPROF_NSYS_RANGE": "none"},
    "torch": TORCH,
    "torch, record_shapes + with_stack": {**TORCH, "RLPROF_FLAGS": "record_shapes,with_stack"},
    "nsys, t=nvtx": NSYS,
}
Cycle = list[tuple[float, float]]  # (work, step) in seconds of its control, window and after


def bench(
    run: Run, *, cycles: int = 24, modes: tuple[str, ...] = tuple(MODES), pool: tuple[str, ...] = ()
) -> None:
    found: dict[str, list[Cycle]] = defaultdict(list)
    for path in pool:
        for mode, some in json.loads(Path(path).read_text())["found"]["cycles"].items():
            found[mode] += some
    run.head("ms; median [95 %]", "cycles", "control", *(f"{each}, {of}" for each, of, _, _ in DIFFERENCES))
    for mode in found or modes:
        if not pool and (not mode.startswith("nsys") or shutil.which("nsys")):
            found[mode] = measure(mode, cycles)
        row(run, mode, found[mode])
    run.found["cycles"] = found


DIFFERENCES = (
    ("work", "window - control", WINDOW, 0),
    ("step", "window - control", WINDOW, 1),
    ("step", "after - control", AFTER, 1),
)


def row(run: Run, mode: str, found: list[Cycle]) -> None:
    control = 1e3 * statistics.median(cycle[CONTROL][0] for cycle in found)
    shown = []
    for _, _, kind, time in DIFFERENCES:
        middle, low, high = interval([1e3 * (cycle[kind][time] - cycle[CONTROL][time]) for cycle in found])
        percent = f" {middle / control:+.1%}" if time == 0 else ""
        shown.append(f"{middle:+.1f} [{low:+.1f}, {high:+.1f}]{percent}")
    run.row(mode, len(found), f"{control:.1f}", *shown)


def interval(differences: list[float]) -> tuple[float, float, float]:
    """The median and its 95 % bootstrap interval."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(differences, k=len(differences))) for _ in range(10_000))
    return statistics.median(differences), medians[250], medians[9_749]


def measure(mode: str, cycles: int) -> list[Cycle]:
    """One run of the demo."""
    steps = WARM_UP + 3 * cycles
    asked = MODES[mode]
    with tempfile.TemporaryDirectory(prefix="rlb", dir="/tmp") as folder:
        own = {
            "RLPROF_NODE_DIR": folder,
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": folder,
            "OMP_NUM_THREADS": "1",
        }
        env = environment(own | asked)
        if asked:
            windows = f"{WARM_UP + 1 + WINDOW}:{steps + 1}:3"
            env |= {"RLPROF_STEPS": windows, "RLPROF_WORKERS": "policy_worker"}
        if "RLPROF_NSYS_RANGE" not in asked:
            env |= rayenv.environment(env)
        request = load_request(env=env)
        if request:
            env["RLPROF_REQUEST_JSON"] = request.to_json()
        times = Path(folder, "times.json")
        words = ["--steps", str(steps), "--policy-workers", "1", "--address", "local", "--json", times]
        env["RLPROF_JOB"] = job = f"bench-{os.getpid()}"
        try:
            spend([sys.executable, "-m", "rlprof_ops.demo", *words], env)
        finally:  # an nsys that hangs after its program's end, as it does at times
            drain.reap(job, folder, say=lambda _: None)
        check_windows(Path(folder), cycles if request else 0, reports="RLPROF_NSYS_RANGE" not in asked)
        work, whole = read(json.loads(times.read_text()))
    first = [WARM_UP + 1 + 3 * cycle for cycle in range(cycles)]
    return [[(work[step], whole[step]) for step in (start, start + 1, start + 2)] for start in first]


def check_windows(folder: Path, expected: int, reports: bool) -> None:
    """Every window was taken, else the run says nothing."""
    events = [
        json.loads(line)
        for path in folder.glob("events/policy_worker_*.jsonl")
        for line in path.read_text().splitlines()
    ]
    opened = [event for event in events if event["event"] == "opened"]
    failed = [event for event in events if event["event"] in ("failed", "no_ranges")]
    found = [path for path in folder.glob("profiles/**/*") if path.is_file()]
    if len(opened) != expected or failed or (reports and len(found) != expected):
        sys.exit(f"{len(opened)} windows and {len(found)} reports instead of {expected}; {failed[:2]}")


def read(record: dict[str, Any]) -> tuple[dict[int, float], dict[int, float]]:
    """By step, in seconds: the policy worker's phases, and the whole step."""
    work: dict[int, float] = defaultdict(float)
    for worker in record["workers"]:
        for entry in worker["times"]:
            if entry["phase"] != "step" and worker["worker"] == "policy_worker":
                work[entry["step"]] += (entry["end_ns"] - entry["start_ns"]) / 1e9
    return work, {entry["step"]: entry["seconds"] for entry in record["steps"]}
