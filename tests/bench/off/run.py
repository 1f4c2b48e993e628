"""What everything of ours costs a real trainer that asks for nothing: losses, and time added to a step.

    python tests/bench/off/run.py [--steps 6] [--price] [TRAINER ...]

"Off" is what every process of a job has that asks for nothing: the adapters, and captures on demand listened
for. Two runs of a trainer differ by far more than we cost, so the price is measured in one process of its
environment: the timers of one step with our wrappers and without, beside the step's own time in a run
without us. Another run has us off: its losses have to be the same where the trainer's own are, which a second
run without us shows. --price leaves out the runs, and with them the ratio. Trainers whose environments are
not built are left out (tests/trainers/environments.py). Exits 1 where a ratio is above 1.01.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
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
# Each defines `step(bare)`: one step's timers as a function of the step's number. TRL's is in CI
# (tests/trainers/test_off.py).
PRICES = {
    "verl": """
import contextlib
from types import SimpleNamespace
import verl.utils.profiler.performance as performance
from rlprof_ops.frameworks.verl import adapter

trainer = adapter._STATE.trainer = SimpleNamespace(global_steps=1)
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
    arguments.add_argument("--steps", type=int, default=6)
    arguments.add_argument("--price", action="store_true")
    options = arguments.parse_args()
    if unknown := set(options.trainers) - set(PRICES):
        arguments.error(f"no trainer {', '.join(sorted(unknown))}; there are {', '.join(PRICES)}")

    ratios = []
    for name in options.trainers or PRICES:
        if not list(environments.cache_root().glob(f"{name}-*/ready")):
            print(f"{name}: its environment is not built, left out", flush=True)
            continue
        added_s = price(name)
        said = f"{name}: {added_s * 1e6:.0f} us added to a step"
        if not options.price:
            bare, again, off = (run(name, options.steps, is_off) for is_off in (False, False, True))
            fastest_s = min(seconds for number, seconds in bare[0].items() if number > 1)
            ratios.append(1 + added_s / fastest_s)
            losses = "the same" if off[1] == bare[1] else "others"
            bares = "the same" if again[1] == bare[1] else "others"
            said += f" of {fastest_s:.3f} s: ratio {ratios[-1]:.5f}; {len(bare[1])} losses: {losses} off,"
            said += f" {bares} in a second run without us"
        print(said, flush=True)
    return int(any(ratio > MOST for ratio in ratios))


def price(name: str) -> float:
    """Seconds that our wrappers add to one step."""
    with tempfile.TemporaryDirectory() as work:
        one = runs.trainer_run(name, work=Path(work), env=off_variables(work))
        argv = [str(environments.ensure(name).python), "-P", "-W", "ignore", "-c", PRICES[name] + MEASURE]
        return float(re.findall(r"added ([-\d.e]+)", output(argv, one))[-1])


def run(name: str, steps: int, off: bool) -> tuple[dict[int, float], list[str]]:
    """Seconds by step, and the losses as printed."""
    with tempfile.TemporaryDirectory() as work:
        env = off_variables(work) if off else {}
        one = runs.trainer_run(name, work=Path(work), steps=steps, env=env)
        text = output(one.argv, one)
        return runs.step_times(name, text), re.findall(LOSSES[name], text)


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
