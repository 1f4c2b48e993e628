"""What everything of ours costs a real trainer that asks for nothing: losses and step times, side by side.

"Off" is what every process of a job has that asks for nothing: the adapters, and captures on demand
listened for. Runs without us and runs with us off take turns, with the trainer's own seeds. Their losses
have to be the same, or, where two runs without us differ already, to differ no more than that. The ratio of
step times is the median over the pairs of the ratio of both runs' medians; the same of two runs without us,
one after the other, says how far a ratio can be trusted on this machine. It cannot to 1 % on a busy one, so
the price is also measured in one process of the trainer's environment: the timers of one step with our
wrappers and without, over the step's own time. --price measures that alone. Trainers whose environments are
not built are left out (tests/trainers/environments.py).
"""

from __future__ import annotations

import itertools
import re
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.bench.harness import Run, by_turns, ratio, spend
from tests.trainers import environments, runs

from rlprof_ops.job.knobs import python_path

QUICK = {"steps": 3, "pairs": 1, "price": True}
MOST = 1.01
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


def bench(
    run: Run,
    *,
    trainers: tuple[str, ...] = ("verl", "nemo_rl", "rlinf"),
    steps: int = 12,
    pairs: int = 3,
    price: bool = False,
) -> None:
    for name in trainers:
        if not list(environments.cache_root().glob(f"{name}-*/ready")):
            run.say(f"{name}: its environment is not built, left out")
            continue
        added_s = added(name)
        run.say(f"{name}: {added_s * 1e6:.0f} us of ours in a step")
        if not price:
            compare(run, name, steps, pairs, added_s)


def compare(run: Run, name: str, steps: int, pairs: int, added_s: float) -> None:
    """Both sides of one trainer, held against `MOST`."""
    sides = {
        side: lambda off=off: trained(name, steps, off) for side, off in (("without", False), ("off", True))
    }
    found: dict[str, list[Trained]] = by_turns(sides, pairs)
    run.head("side   ", "s a step", "losses")
    for side, some in found.items():
        for each in some:
            run.row(side, f"{each.step_s:.3f}", " ".join(each.losses[:6]))
    bare, off = found["without"], found["off"]
    middle, words = ratio([each.step_s for each in off], [each.step_s for each in bare])
    noise = [later.step_s / earlier.step_s for earlier, later in itertools.pairwise(bare)]
    run.say(f"off / without: {words}; without / without: {' '.join(f'{each:.3f}' for each in noise) or '-'}")
    run.say(f"losses: off {agreement(off, bare[0])}, without us again {agreement(bare[1:], bare[0])}")
    paid = 1 + added_s / min(each.step_s for each in bare)
    run.limit(f"{name}: by the price of the timers", paid, MOST)
    run.limit(f"{name}: off / without", middle, max([MOST, *noise, *(1 / each for each in noise)]))


def agreement(others: list[Trained], first: Trained) -> str:
    """How far the losses of these runs are the same as those of `first`."""
    if not others:
        return "-"
    alike = min(
        sum(
            1
            for _ in itertools.takewhile(
                lambda pair: pair[0] == pair[1], zip(one.losses, first.losses, strict=True)
            )
        )
        for one in others
    )
    return f"the same in the first {alike} of {len(first.losses)} steps"


def added(name: str) -> float:
    """Seconds that our wrappers add to one step."""
    with tempfile.TemporaryDirectory() as work:
        one = runs.trainer_run(name, work=Path(work), env=off_variables(work))
        argv = [str(environments.ensure(name).python), "-P", "-W", "ignore", "-c", PRICES[name] + MEASURE]
        return float(re.findall(r"added ([-\d.e]+)", spend(argv, one.environment(), one.cwd).output)[-1])


@dataclass(frozen=True)
class Trained:
    """Seconds of each step after the first, and the losses as printed."""

    times: list[float]
    losses: list[str]

    @property
    def step_s(self) -> float:
        return statistics.median(self.times)


def trained(name: str, steps: int, off: bool) -> Trained:
    with tempfile.TemporaryDirectory() as work:
        env = off_variables(work) if off else {}
        one = runs.trainer_run(name, work=Path(work), steps=steps, env=env, overrides=SEEDS.get(name, ()))
        text = spend(one.argv, one.environment(), one.cwd).output
    times = runs.step_times(name, text)
    if sorted(times) != list(range(1, steps + 1)):
        raise SystemExit(f"{name} told the steps {sorted(times)} of {steps}:\n{text[-3000:]}")
    return Trained([times[number] for number in range(2, steps + 1)], re.findall(LOSSES[name], text))


def off_variables(work: str) -> dict[str, str]:
    return {"PYTHONPATH": python_path(None), "RLPROF_ON_DEMAND": "1", "RLPROF_NODE_DIR": f"{work}/node"}
