"""What an open window costs a training step, measured on the demo: off, ranges only, torch, nsys.

    python tests/bench/windows/run.py [--cycles 24] [--json FILE]      measure every mode once
    python tests/bench/windows/run.py --pool FILE FILE …               one table of several such runs

The method, which was fixed before the numbers were known:
- One demo run a mode, one policy worker and one generation worker, one thread each (OMP_NUM_THREADS=1); 4
  steps of warm-up.
- Then cycles of three steps: control (no window), window (a window of one step on the policy worker), after
  (no window; the
  report of the window before is still being written). The three lie within two seconds of each other, so slow
  drift of the machine is the same for all.
- Two times of each step: "work", the sum of the policy worker's phases by the demo's own clock; and "step",
  the whole step
  by the controller's clock, with opening and closing the window.
- The result is the median over all cycles of the paired differences window - control and after - control,
  with its 95 %
  interval (bootstrap over cycles, 10,000 draws). No cycle is left out.
- "off" is the same arithmetic where nothing was asked: its interval should hold 0, and says what the method
  can resolve.
- "ranges only" is a window of a process that is told that something records it all the time
  (RLPROF_NSYS_RANGE=none):
  windows open, steps and phases are NVTX ranges, and no tool is attached.
Needs ray and torch; nsys where it is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[3] / "python"
sys.path.insert(0, str(PACKAGE))
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


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--cycles", type=int, default=24)
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--pool", type=Path, nargs="+")
    options = arguments.parse_args()
    if options.pool:
        cycles: dict[str, list[Cycle]] = defaultdict(list)
        for path in options.pool:
            for mode, found in json.loads(path.read_text()).items():
                cycles[mode] += found
    else:
        cycles = {}
        for mode in MODES:
            if mode.startswith("nsys") and not shutil.which("nsys"):
                continue
            cycles[mode] = run(mode, options.cycles)
            print(f"{mode}: done", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(cycles))
    table(cycles)
    return 0


def table(cycles: dict[str, list[Cycle]]) -> None:
    print(
        f"{'ms; median [95 %]':34} {'cycles':>6} {'control':>8} {'work, window - control':>28}"
        f" {'step, window - control':>28} {'step, after - control':>28}"
    )
    for mode, found in cycles.items():
        control = 1e3 * statistics.median(cycle[CONTROL][0] for cycle in found)
        shown = []
        for kind, time in ((WINDOW, 0), (WINDOW, 1), (AFTER, 1)):
            middle, low, high = interval(
                [1e3 * (cycle[kind][time] - cycle[CONTROL][time]) for cycle in found]
            )
            percent = f" {middle / control:+.1%}" if time == 0 else ""
            shown.append(f"{middle:+.1f} [{low:+.1f}, {high:+.1f}]{percent}")
        print(f"{mode:34} {len(found):6} {control:8.1f} {shown[0]:>28} {shown[1]:>28} {shown[2]:>28}")


def interval(differences: list[float]) -> tuple[float, float, float]:
    """The median and its 95 % bootstrap interval."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(differences, k=len(differences))) for _ in range(10_000))
    return statistics.median(differences), medians[250], medians[9_749]


def run(mode: str, cycles: int) -> list[Cycle]:
    """One run of the demo."""
    from rlprof_ops import rayenv
    from rlprof_ops.collect.drain import drain_steps as drain
    from rlprof_ops.request import load_request

    steps = WARM_UP + 3 * cycles
    asked = MODES[mode]
    with tempfile.TemporaryDirectory(prefix="rlb", dir="/tmp") as folder:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "NRL_"))}
        env |= {
            "PYTHONPATH": str(PACKAGE),
            "RLPROF_NODE_DIR": folder,
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": folder,
            "OMP_NUM_THREADS": "1",
            **asked,
        }
        if asked:
            env |= {
                "RLPROF_STEPS": f"{WARM_UP + 1 + WINDOW}:{steps + 1}:3",
                "RLPROF_WORKERS": "policy_worker",
            }
        if "RLPROF_NSYS_RANGE" not in asked:
            env |= rayenv.environment(env)
        request = load_request(env=env)
        if request:
            env["RLPROF_REQUEST_JSON"] = request.to_json()
        times = Path(folder, "times.json")
        command = [
            sys.executable,
            "-m",
            "rlprof_ops.demo",
            "--steps",
            str(steps),
            "--policy-workers",
            "1",
            "--address",
            "local",
            "--json",
            str(times),
        ]
        env["RLPROF_JOB"] = job = f"bench-{os.getpid()}"
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
        finally:
            drain.reap(
                job, folder, say=lambda _: None
            )  # an nsys that hangs after its program's end, as it does at times
        if done.returncode:
            sys.exit(f"the demo failed: {done.stderr[-2000:]}")
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


if __name__ == "__main__":
    sys.exit(main())
