"""What everything of ours costs a real trainer that asks for nothing: losses and step times, side by side.

    python tests/bench/off/run.py [--steps 12] [--pairs 3] [--price] [TRAINER ...]

"Off" is what every process of a job has that asks for nothing: the adapters, and captures on demand listened
for. Runs without us and runs with us off take turns, an equal number of each, with the trainer's own seeds.
Their losses have to be the same, or, where two runs without us differ already, to differ no more than that.
The ratio of step times is the median over the pairs of the ratio of both runs' medians; the same of two runs
without us, one after the other, says how far a ratio can be trusted on this machine. It cannot to 1 % on a
busy one, so the price is also measured in one process of the trainer's environment: the timers of one step
with our wrappers and without, over the step's own time. --price measures that alone. Trainers whose
environments are not built are left out (tests/trainers/environments.py). Exits 1 where the price is above
1.01, or the ratio above 1.01 and above all ratios of two runs without us.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[3]), str(HERE.parents[3] / "python")]

from tests.trainers import environments, runs  # noqa: E402

from rlprof_ops.job.knobs import python_path  # noqa: E402

MOST = 1.01
TIMEOUT_S = 900
LOSSES = {
    "verl": r"actor/pg_loss:([-\d.e]+)",
    "nemo_rl": r"• Loss: ([-\d.e]+)",
    "rlinf": r'"\w*/?loss": ([-\d.e]+)',
}
SEEDS = {"verl": ("data.seed=1", "trainer.total_epochs=1000")}
# Each defines `step(bare)`: one step's timers as a function of the step's number. TRL's is in CI
# (tests/trainers/test_off.py).
PRICES = {
    "verl": """
import contextlib
from types import SimpleNamespace
import verl.utils.profiler.performance as performance
from rlprof_ops.trainers.verl import adapter

trainer = SimpleNamespace(global_steps=1)
adapter._STATE.trainer = lambda: trainer
NAMES = "start_profile gen reward old_log_prob ref values adv update_critic update_actor update_weights"

def step(bare):
    timer = contextlib.contextmanager(performance._timer.__wrapped__ if bare else performance._timer)
    def run(number):
        trainer.global_steps, raw = number, {}
        with timer("step", raw):
            for name in NAMES.split():
                with timer(name, raw):
                    pass
    return run
""",
    "nemo_rl": """
from nemo_rl.utils import nsys
from nemo_rl.utils.timer import Timer

def step(bare):
    functions = Timer.start, Timer.stop, nsys.maybe_gpu_profile_step
    start, stop, profile = [function.__wrapped__ if bare else function for function in functions]
    timer = Timer()
    def run(number):
        profile(None, number + 1)
        for label in [*map(str, range(20)), "total_step_time"]:
            start(timer, label)
            stop(timer, label)
    return run
""",
    "rlinf": """
from rlinf.utils.distributed import ScopedTimer

class Runner:
    global_step = 0

    def run(self, call, timer):
        with call(timer, "step"):
            for number in range(12):
                with call(timer, str(number)):
                    pass
        timer.consume_durations()

def step(bare):
    call = ScopedTimer.__call__.__wrapped__ if bare else ScopedTimer.__call__
    runner, timer = Runner(), ScopedTimer(reduction="max", sync_cuda=False)
    def run(number):
        runner.global_step = number
        runner.run(call, timer)
    return run
""",
}
MEASURE = """
import statistics, time

def median(run):
    times = []
    for number in range(400):
        began = time.perf_counter()
        run(number)
        times.append(time.perf_counter() - began)
    return statistics.median(times)

median(step(False))
print("added", min(median(step(False)) for _ in range(3)) - min(median(step(True)) for _ in range(3)))
"""


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("trainers", nargs="*", metavar="TRAINER")
    arguments.add_argument("--steps", type=int, default=12)
    arguments.add_argument("--pairs", type=int, default=3)
    arguments.add_argument("--price", action="store_true")
    options = arguments.parse_args()
    if unknown := set(options.trainers) - set(PRICES):
        arguments.error(f"no trainer {', '.join(sorted(unknown))}; there are {', '.join(PRICES)}")

    dear = False
    for name in options.trainers or PRICES:
        if not list(environments.cache_root().glob(f"{name}-*/ready")):
            print(f"{name}: its environment is not built, left out", flush=True)
            continue
        added_s = price(name)
        print(f"{name}: {added_s * 1e6:.0f} us of ours in a step", flush=True)
        if not options.price:
            dear |= compare(name, options.steps, options.pairs, added_s)
    return int(dear)


def compare(name: str, steps: int, pairs: int, added_s: float) -> bool:
    """Print both sides of one trainer; whether we cost more than `MOST`."""
    bare: list[Run] = []
    off: list[Run] = []
    for _ in range(pairs):
        for is_off in (False, True):
            found = run(name, steps, is_off)
            (off if is_off else bare).append(found)
            print(
                f"  {'with us off' if is_off else 'without us '}  {found.step_s:.3f} s a step of"
                f" {len(found.times)}, losses {' '.join(found.losses[:6])}",
                flush=True,
            )
    ratios = [ours.step_s / theirs.step_s for ours, theirs in zip(off, bare, strict=True)]
    noise = [later.step_s / earlier.step_s for earlier, later in itertools.pairwise(bare)]
    ratio, paid = statistics.median(ratios), 1 + added_s / min(found.step_s for found in bare)
    print(f"  off / without: {ratio:.4f} ({figures(ratios)}); without / without: {figures(noise)}")
    print(f"  by the price of the timers: {paid:.6f}")
    print(f"  losses: off {agreement(off, bare[0])}, without us again {agreement(bare[1:], bare[0])}")
    return paid > MOST or ratio > max([MOST, *noise, *(1 / found for found in noise)])


def figures(values: list[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values) or "-"


def agreement(runs_of_it: list[Run], first: Run) -> str:
    """How far the losses of these runs are the same as those of `first`."""
    if not runs_of_it:
        return "-"
    alike = min(
        next((n for n, (a, b) in enumerate(zip(one.losses, first.losses, strict=True)) if a != b), None)
        or (len(first.losses) if one.losses == first.losses else 0)
        for one in runs_of_it
    )
    return f"the same in {alike} of {len(first.losses)} steps"


def price(name: str) -> float:
    """Seconds that our wrappers add to one step."""
    with tempfile.TemporaryDirectory() as work:
        one = runs.trainer_run(name, work=Path(work), env=off_variables(work))
        argv = [str(environments.ensure(name).python), "-P", "-W", "ignore", "-c", PRICES[name] + MEASURE]
        return float(re.findall(r"added ([-\d.e]+)", output(argv, one))[-1])


@dataclass(frozen=True)
class Run:
    """Seconds of each step after the first, and the losses as printed."""

    times: list[float]
    losses: list[str]

    @property
    def step_s(self) -> float:
        return statistics.median(self.times)


def run(name: str, steps: int, off: bool) -> Run:
    with tempfile.TemporaryDirectory() as work:
        env = off_variables(work) if off else {}
        one = runs.trainer_run(name, work=Path(work), steps=steps, env=env, overrides=SEEDS.get(name, ()))
        text = output(one.argv, one)
        times = runs.step_times(name, text)
        if sorted(times) != list(range(1, steps + 1)):
            sys.exit(f"{name} told the steps {sorted(times)} of {steps}:\n{text[-3000:]}")
        return Run([times[number] for number in range(2, steps + 1)], re.findall(LOSSES[name], text))


def off_variables(work: str) -> dict[str, str]:
    return {
        "PYTHONPATH": python_path(None),
        "RLPROF_ON_DEMAND": "1",
        "RLPROF_NODE_DIR": f"{work}/node",
    }


def output(argv: list[str] | tuple[str, ...], one: runs.TrainerRun) -> str:
    done = subprocess.run(
        argv,
        cwd=one.cwd,
        env=one.environment(),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )
    text = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)[:200]} ended with {done.returncode}:\n{text[-3000:]}")
    return text


if __name__ == "__main__":
    sys.exit(main())
