"""Kinds of jobs beside the plain one."""

from __future__ import annotations

import pytest
from tests.sandbox import Sandbox
from tests.whole_job.jobs import Job

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.timeout(300)]


def test_a_heterogeneous_job_is_refused(slurm: Sandbox) -> None:
    job = Job.submit(slurm, ":", "-N1", nodes=1, COMMAND="true")
    state = job.wait(timeout=60)
    assert (state.state, state.exit_code) == ("FAILED", 2), job.output
    assert "a heterogeneous job of 2 components" in job.output
    assert not job.run.exists()


def test_ray_has_the_gpus_of_all_tasks(slurm: Sandbox) -> None:
    """`--gpus-per-task`: a step of one task a node would get one GPU of two."""
    command = "python -c \"import ray; ray.init(); print('GPUs', ray.cluster_resources()['GPU'])\""
    wishes = ("--ntasks-per-node=2", "--gpus-per-task=1")
    job = Job.submit(slurm, *wishes, nodes=1, COMMAND=command, RLPROF_REPORT_SECONDS="0")
    state = job.wait(timeout=120)
    assert (state.state, state.exit_code) == ("COMPLETED", 0), job.say()
    assert "GPUs 2.0" in (job.run / "logs" / "driver.log").read_text()
