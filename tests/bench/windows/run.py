"""What an open window costs the demo's work: torch and nsys, each against the steps between its windows in the same run.

    python tests/bench/windows/run.py [--steps 16] [--rounds 1] [--json FILE]

Every other step is a window, so that both sides of a ratio see the same machine at the same time; the fastest step of each
side counts. "work" is the sum of a policy worker's phases in a step, by the demo's own clock; "opening and closing" is what
the controller's whole step takes longer beside that. The rows without windows compare whole runs, so they need a quiet
machine. Needs ray and torch; nsys where it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "python"
sys.path.insert(0, str(PACKAGE))
FIRST = 4  # the steps before are warm-up
TORCH = {"RLPROF_BACKEND": "torch"}
NSYS = {"RLPROF_BACKEND": "nsight", "RLPROF_OPTIONS": '{"t": "nvtx"}'}
MODES = {
    "nothing asked": {},
    "ranges timed, no window": {"RLPROF_METRICS": "1"},
    "torch": TORCH,
    "torch, record_shapes + with_stack": {**TORCH, "RLPROF_FLAGS": "record_shapes,with_stack"},
    "nsys, t=nvtx": NSYS,
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=16)
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    modes = [mode for mode in MODES if "nsys" not in mode or shutil.which("nsys")]
    inside: dict[str, tuple[list[float], list[float]]] = {mode: ([], []) for mode in modes}
    outside: dict[str, tuple[list[float], list[float]]] = {mode: ([], []) for mode in modes}
    for _ in range(options.rounds):
        for mode in modes:
            for step, (work_s, step_s) in run(MODES[mode], options.steps).items():
                if step >= FIRST:
                    side = inside if "RLPROF_BACKEND" in MODES[mode] and step % 2 == 0 else outside
                    side[mode][0].append(work_s)
                    side[mode][1].append(step_s)
            print(f"{mode}: done", file=sys.stderr, flush=True)
    rows = {mode: row(mode, inside[mode], outside[mode], outside["nothing asked"]) for mode in modes}
    print(f"{'':34} {'work':>9} {'against':>9} {'ratio':>7} {'opening and closing':>20}")
    for mode, (work_s, base_s, extra_s) in rows.items():
        extra = f"{extra_s:17.2f} s" if inside[mode][0] else f"{'':>19}"
        print(f"{mode:34} {work_s * 1e3:6.0f} ms {base_s * 1e3:6.0f} ms {work_s / base_s:6.2f}x {extra}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


def row(mode: str, inside: tuple[list[float], list[float]], outside: tuple[list[float], list[float]], off: tuple[list[float], list[float]]) -> tuple[float, float, float]:
    """Work a step in windows, work without, and what a window adds to a step beside its work; seconds."""
    # The fastest of each side: whatever else the machine does only makes steps slower.
    if not inside[0]:
        return min(outside[0]), min(off[0]), 0.0
    work, base = min(inside[0]), min(outside[0])
    return work, base, max(0.0, min(inside[1]) - min(outside[1]) - max(0.0, work - base))


def run(mode: dict[str, str], steps: int) -> dict[int, tuple[float, float]]:
    """One run of the demo: step -> (mean of the policy workers' phases, the step by the wall clock), in seconds."""
    from rlprof_ops import rayenv
    from rlprof_ops.collect import drain
    from rlprof_ops.request import ProfileRequest

    with tempfile.TemporaryDirectory(prefix="rlb", dir="/tmp") as folder:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "NRL_"))}
        env |= {"PYTHONPATH": str(PACKAGE), "RLPROF_NODE_DIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": folder, **mode}
        if "RLPROF_BACKEND" in mode:
            env |= {"RLPROF_STEPS": f"{FIRST}:{steps + 1}:2", "RLPROF_WORKERS": "policy_worker"}
        env |= rayenv.environment(env)
        request = ProfileRequest.load(env=env)
        if request:
            env["RLPROF_REQUEST_JSON"] = request.to_json()
        times = Path(folder, "times.json")
        command = [sys.executable, "-m", "rlprof_ops.demo", "--steps", str(steps), "--address", "local", "--json", str(times)]
        env["RLPROF_JOB"] = job = f"bench-{os.getpid()}"
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=580)
        finally:
            drain.reap(job, folder, say=lambda _: None)  # an nsys that hangs after its program's end, as it does at times
        if done.returncode:
            sys.exit(f"the demo failed: {done.stderr[-2000:]}")
        reports = [path for path in Path(folder, "profiles").rglob("*") if path.is_file()]
        windows = len(range(FIRST, steps + 1, 2)) if request else 0
        assert len(reports) == 2 * windows, f"{len(reports)} reports instead of {2 * windows}"
        return read(json.loads(times.read_text()))


def read(record: dict) -> dict[int, tuple[float, float]]:
    work: dict[int, list[float]] = defaultdict(list)
    for worker in record["workers"]:
        own: dict[int, float] = defaultdict(float)
        for entry in worker["times"]:
            if entry["phase"] != "step" and worker["worker"] == "policy_worker":
                own[entry["step"]] += (entry["end_ns"] - entry["start_ns"]) / 1e9
        for step, seconds in own.items():
            work[step].append(seconds)
    return {entry["step"]: (statistics.mean(work[entry["step"]]), entry["seconds"]) for entry in record["steps"]}


if __name__ == "__main__":
    sys.exit(main())
