"""What the flight recorder costs a step, within one run of TRL: on and off by turns of a few steps.

    python tests/bench/recorder/turns.py [--steps 6000] [--turn 50]

Two runs one after the other differ by several percent here, whatever runs in them (`pairs.py` shows by how
much). So one process takes turns: for `--turn` steps it tells its steps and phases as in every job and a
node's recorder runs beside it, for as many it tells nothing and the recorder stands still (SIGSTOP). A turn
counts by the median of its steps without the first two, its ratio is against the mean of the turns before
and after it. The same of turns that are both off, taken from a run without any recorder, says how far the
figure can be trusted.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import runpy
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
_SETTLE = 2  # steps at the beginning of a turn that do not count


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        return inside(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    sys.path[:0] = [str(HERE.parents[3]), str(HERE.parents[3] / "python")]
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--steps", type=int, default=6000)
    arguments.add_argument("--turn", type=int, default=50, help="steps (default 50)")
    options = arguments.parse_args()
    for title, record in (("on / off", True), ("off / off", False)):
        found = ratios(run(options.steps, options.turn, record), options.turn)
        print(f"TRL, {len(found)} turns, {title}: {figures(found)}", flush=True)
    return 0


def run(steps: int, turn: int, record: bool) -> dict[int, float]:
    """Seconds of every step of one run."""
    from tests.bench.recorder import pairs
    from tests.trainers import runs

    with tempfile.TemporaryDirectory() as work:
        node_dir = Path(work) / "node"
        (node_dir / "events").mkdir(parents=True)
        env = pairs.environment(node_dir, record)
        with pairs.recorder(Path(work), node_dir, env) if record else contextlib.nullcontext([]) as cost:
            pid = cost.pid if record else 0
            one = runs.trainer_run("trl", work=Path(work), steps=steps, env=env)
            at = next(place for place, word in enumerate(one.argv) if word.endswith("grpo.py"))
            argv = [*one.argv[:at], str(HERE), "--inside", str(pid), str(turn), *one.argv[at:]]
            return runs.step_times("trl", pairs.output(argv, one.cwd, one.environment()))


def ratios(times: dict[int, float], turn: int) -> list[float]:
    """Of every second turn against its neighbours."""
    medians = [
        statistics.median(times[step] for step in range(first + _SETTLE, first + turn))
        for first in range(turn, max(times) - turn + 1, turn)  # the first turn warms up
    ]
    return [
        2 * medians[i] / (medians[i - 1] + medians[i + 1])
        for i in range(1, len(medians) - 1)
        if _is_on(turn * (i + 1), turn)
    ]


def figures(found: list[float]) -> str:
    logs = [math.log(ratio) for ratio in found]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = (math.exp(mean + sign * 1.96 * error) for sign in (-1, 1))
    middle = statistics.median(found)
    return f"{math.exp(mean):.4f} (95 % confidence {low:.4f} to {high:.4f}), median {middle:.4f}"


def _is_on(step: int, turn: int) -> bool:
    return (step // turn) % 2 == 0


# ---- in the trainer's process


def inside(recorder: int, turn: int, argv: list[str]) -> int:
    """Run a trainer's script with a leader that takes turns."""
    from rlprof_ops.runtime.leader import Leader, PhaseSpan

    on = [True]
    begin, phase_begins = Leader.begin, Leader.phase_begins

    def turned(self: Any, step: int) -> bool:
        if on[0] != (now := _is_on(step, turn)):
            on[0] = now
            if recorder:
                os.kill(recorder, signal.SIGCONT if now else signal.SIGSTOP)
        return begin(self, step) if now and recorder else False

    def gated(work: Any) -> Any:
        return lambda self, *args, **more: work(self, *args, **more) if on[0] and recorder else None

    Leader.begin = turned  # type: ignore[method-assign]
    for name in ("opened", "end", "phase_ends"):
        setattr(Leader, name, gated(getattr(Leader, name)))
    Leader.phase_begins = lambda self, name: (  # type: ignore[method-assign]
        phase_begins(self, name) if on[0] and recorder else PhaseSpan(name, 0, 0)
    )
    sys.argv = argv
    try:
        runpy.run_path(argv[0], run_name="__main__")
    finally:
        if recorder:
            os.kill(recorder, signal.SIGCONT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
