"""verl's main_ppo as a job of ray.sub on the sandbox, with the window of step 2 asked of everybody."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainers import environments, runs
from tests.whole_job.jobs import Job

# By verl's own configuration: a step of some seconds, since ten reports are written beside the next one, each
# by an nsys that needs a core for about a second; and more steps than the prompts are good for once. Longer
# responses do not do it: verl asks every 2 s whether they are there.
LONGER = (
    "actor_rollout_ref.actor.ppo_epochs=20",
    "trainer.total_epochs=1000",
    # verl has its engines' figures off, which leaves /metrics without them.
    "actor_rollout_ref.rollout.disable_log_stats=False",
)


def submit(slurm: Any, *arguments: str, steps: int) -> Job:
    """Submit it; skips the test where verl cannot be had."""
    if why := environments.lacking("verl"):
        pytest.skip(why)
    slurm.heal()
    folder = slurm.shared / "verl"
    folder.mkdir(exist_ok=True)
    run = runs.trainer_run(
        "verl", work=folder, steps=steps, ray_address=runs.FROM_ENVIRONMENT, overrides=LONGER
    )
    return Job.submit(
        slurm,
        "--exclusive",  # all CPUs of the node: verl's actors ask Ray for one each
        *arguments,
        nodes=1,
        RLPROF_VENV=str(environments.ensure("verl").folder / "venv"),
        GPUS_PER_NODE="1",
        RLPROF_READY_SECONDS="300",
        **{name: value for name, value in run.env.items() if name != "PATH"},
        COMMAND=run.shell(),
        RLPROF_STEPS="2",
        RLPROF_WORKERS="*",
        RLPROF_OPTIONS='{"t": "nvtx"}',
    )
