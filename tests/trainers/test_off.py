"""A job that asks for nothing: the trainer computes what it computes without us, and pays next to nothing.

Times of two runs differ by more than 1 % on a busy machine, so the price is measured as what our wrappers add
to a step in the very process, over the step's own time; both are printed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rlprof_ops.job.knobs import python_path
from tests.trainers import environments, runs

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(700)]

# Runs in TRL's environment: one step's worth of the wrapped calls, with and without their wrappers.
PRICE = """
import time
from types import SimpleNamespace
import trl.extras.profiling as profiling
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

args = SimpleNamespace(process_index=0, world_size=1)
handler = CallbackHandler([], None, None, None, None)
names = ["_prepare_inputs", "transformers.generate", "_calculate_rewards", "f",
         "_get_per_token_logps_and_entropies", "compute_loss", "_get_per_token_logps_and_entropies"]

def step(handler_class, context_class, number):
    state, control = TrainerState(global_step=number), TrainerControl()
    handler_class["on_step_begin"](handler, args, state, control)
    for name in names:
        context = profiling.ProfilingContext("GRPOTrainer." + name, [])
        context_class["__enter__"](context)
        context_class["__exit__"](context, None, None, None)
    handler_class["on_step_end"](handler, args, state, control)

def best(functions, bare):
    def pick(owner, names):
        found = {name: getattr(owner, name) for name in names}
        return {name: f.__wrapped__ if bare else f for name, f in found.items()}
    chosen = [pick(owner, names) for owner, names in functions]
    times = []
    for number in range(300):
        began = time.perf_counter()
        step(*chosen, number)
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]

functions = [(CallbackHandler, ["on_step_begin", "on_step_end"]),
             (profiling.ProfilingContext, ["__enter__", "__exit__"])]
best(functions, False)
print("added", best(functions, False) - best(functions, True))
"""


def output(argv: tuple[str, ...], run: runs.TrainerRun, **env: str) -> str:
    done = subprocess.run(
        argv,
        cwd=run.cwd,
        env={**run.environment(), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def losses(text: str) -> list[str]:
    return re.findall(r"'loss': '?([-\d.e]+)", text)


def test_trl_with_everything_off(tmp_path: Path):
    if why := environments.lacking("trl"):
        pytest.skip(why)
    run = runs.trainer_run("trl", work=tmp_path, steps=6)
    # What a process of a job has: the adapters and on-demand captures listening, and no request.
    off = {
        "PYTHONPATH": python_path(None),
        "RLPROF_ON_DEMAND": "1",
        "RLPROF_NODE_DIR": str(tmp_path / "node"),
    }
    bare, ours = output(run.argv, run), output(run.argv, run, **off)
    assert len(losses(bare)) == 6 and losses(ours) == losses(bare)
    times = sorted(runs.step_times("trl", bare).values())
    price = output((*run.argv[:2], "-c", PRICE), run, **off)
    added = float(re.findall(r"added ([-\d.e]+)", price)[0])
    ratio = 1 + added / times[len(times) // 2]
    print(f"a step of {times[len(times) // 2]:.3f} s, {added * 1e6:.0f} us of ours: ratio {ratio:.5f}")
    assert ratio <= 1.01
