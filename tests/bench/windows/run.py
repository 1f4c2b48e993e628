"""What a window costs the demo's steps: nothing asked, ranges timed only, torch, nsys. One table, all sides in turns.

    python tests/bench/windows/run.py [--rounds 3] [--json FILE]

Steps 4 to 8 of ten are compared, all inside the window 3:10, so that neither its opening nor its closing counts; those are
the differences of steps 3 and 9. The fastest of the rounds' medians counts. Needs ray and torch; nsys where it is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "python"
sys.path.insert(0, str(PACKAGE))
LINE = re.compile(r"step\s+(\d+)\s.*\s([0-9.]+) s$")
WINDOW = {"RLPROF_STEPS": "3:10", "RLPROF_WORKERS": "*_worker"}
MODES = {
    "nothing asked": {"RLPROF_ON_DEMAND": "0"},
    "armed, window far away": {**WINDOW, "RLPROF_STEPS": "1000:1001", "RLPROF_BACKEND": "torch"},
    "ranges timed, nothing recorded": {"RLPROF_METRICS": "1"},
    "torch": {**WINDOW, "RLPROF_BACKEND": "torch"},
    "torch, with_stack": {**WINDOW, "RLPROF_BACKEND": "torch", "RLPROF_FLAGS": "with_stack"},
    "nsys, t=nvtx": {**WINDOW, "RLPROF_BACKEND": "nsight", "RLPROF_OPTIONS": '{"t": "nvtx"}'},
    "nsys, t=nvtx,osrt": {**WINDOW, "RLPROF_BACKEND": "nsight", "RLPROF_OPTIONS": '{"t": "nvtx,osrt"}'},
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    modes = [mode for mode in MODES if "nsys" not in mode or shutil.which("nsys")]
    times: dict[str, list[dict[int, float]]] = {mode: [] for mode in modes}
    for number in range(options.rounds):
        for mode in modes:
            times[mode].append(run(MODES[mode]))
            print(f"round {number + 1}: {mode}: {median(times[mode][-1]) * 1e3:.0f} ms", file=sys.stderr, flush=True)
    found = {mode: summary(rounds) for mode, rounds in times.items()}
    base = found["nothing asked"]
    print(f"{'':32} {'step':>8} {'over off':>9} {'opening':>9} {'closing':>9}")
    for mode, (step, opening, closing) in found.items():
        print(f"{mode:32} {step * 1e3:5.0f} ms {step / base[0]:8.2f}x {max(0, opening - base[1]):7.2f} s {max(0, closing - base[2]):7.2f} s")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def run(mode: dict[str, str]) -> dict[int, float]:
    """Seconds of each step of one run of the demo."""
    from rlprof_ops import rayenv
    from rlprof_ops.request import ProfileRequest

    with tempfile.TemporaryDirectory(prefix="rlb", dir="/tmp") as folder:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "NRL_"))}
        env |= {"PYTHONPATH": str(PACKAGE), "RLPROF_NODE_DIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": folder, **mode}
        env |= rayenv.environment(env)
        request = ProfileRequest.load(env=env)
        if request:
            env["RLPROF_REQUEST_JSON"] = request.to_json()
        command = [sys.executable, "-m", "rlprof_ops.demo", "--steps", "10", "--address", "local"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        if done.returncode:
            sys.exit(f"the demo failed: {done.stderr[-2000:]}")
        if "RLPROF_STEPS" in mode and mode["RLPROF_STEPS"] == "3:10":
            reports = [path for path in Path(folder, "profiles").rglob("*") if path.is_file()]
            assert len(reports) == 3, f"{len(reports)} reports instead of 3"
    return {int(match[1]): float(match[2]) for match in map(LINE.search, done.stdout.splitlines()) if match}


def median(times: dict[int, float]) -> float:
    return statistics.median(times[step] for step in range(4, 9))


def summary(rounds: list[dict[int, float]]) -> tuple[float, float, float]:
    """The fastest median of the steps inside, and the fastest steps 3 and 9."""
    return min(map(median, rounds)), min(times[3] for times in rounds), min(times[9] for times in rounds)


if __name__ == "__main__":
    sys.exit(main())
