"""What the flight recorder costs a step, within one run of TRL: on and off by turns of a few steps.

Two runs one after the other differ by several percent here, whatever runs in them (`recorder.pairs` shows
by how much). So one process takes turns: for --turn steps it tells its steps and phases as in every job and
a node's recorder runs beside it, for as many it tells nothing and the recorder stands still (SIGSTOP). A
turn counts by the median of its steps without the first two, its ratio is against the mean of the turns
before and after it. The same of turns that are both off, taken from a run without any recorder, says how
far the figure can be trusted.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from pathlib import Path

from tests.bench.harness import Run, spend
from tests.bench.recorder import pairs, turned
from tests.trainers import runs

QUICK = {"steps": 60, "turn": 10}
_SETTLE = 2  # steps at the beginning of a turn that do not count


def bench(run: Run, *, steps: int = 6000, turn: int = 50) -> None:
    for title, record in (("on / off", True), ("off / off", False)):
        found = ratios(trained(steps, turn, record), turn)
        run.say(f"TRL, {len(found)} turns, {title}: {figures(found)}")


def trained(steps: int, turn: int, record: bool) -> dict[int, float]:
    """Seconds of every step of one run."""
    with tempfile.TemporaryDirectory() as work:
        node_dir = Path(work) / "node"
        (node_dir / "events").mkdir(parents=True)
        env = pairs.of_a_job(node_dir, record)
        with pairs.recorder(Path(work), node_dir, env) if record else contextlib.nullcontext([]) as cost:
            pid = cost.pid if record else 0
            one = runs.trainer_run("trl", work=Path(work), steps=steps, env=env)
            at = next(place for place, word in enumerate(one.argv) if word.endswith("grpo.py"))
            argv = [*one.argv[:at], str(Path(turned.__file__).resolve()), str(pid), str(turn), *one.argv[at:]]
            return runs.step_times("trl", spend(argv, one.environment(), one.cwd).output)


def ratios(times: dict[int, float], turn: int) -> list[float]:
    """Of every second turn against its neighbours."""
    medians = [
        statistics.median(times[step] for step in range(first + _SETTLE, first + turn))
        for first in range(turn, max(times) - turn + 1, turn)  # the first turn warms up
    ]
    return [
        2 * medians[i] / (medians[i - 1] + medians[i + 1])
        for i in range(1, len(medians) - 1)
        if turned.is_on(turn * (i + 1), turn)
    ]


def figures(found: list[float]) -> str:
    logs = [math.log(ratio) for ratio in found]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = (math.exp(mean + sign * 1.96 * error) for sign in (-1, 1))
    middle = statistics.median(found)
    return f"{math.exp(mean):.4f} (95 % confidence {low:.4f} to {high:.4f}), median {middle:.4f}"
