"""Kinds of jobs that one Ray cluster cannot span."""

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
