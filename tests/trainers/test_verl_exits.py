"""However a run of verl ends after its window, the window's reports are whole.

A start of verl takes one to five minutes, so each way to end is run where RLPROF_TESTS=long asks for it.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.trainers import verl_job
from tests.trainers.test_verl import ROLES
from tests.waits import wait_until
from tests.whole_job.jobs import Job

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.slurm,
    pytest.mark.nsys,
    pytest.mark.long,
    pytest.mark.timeout(1500),
]


def scancel(job: Job) -> None:
    job.sandbox.run(["scancel", str(job.id)])


def notice_of_the_time_limit(job: Job) -> None:
    """What Slurm does by itself `--signal=B:USR2@120` before the limit."""
    job.sandbox.run(["scancel", "--signal=USR2", "--batch", str(job.id)])


def kill(words: str) -> Callable[[Job], None]:
    def inject(job: Job) -> None:
        found = [process for process in job.sandbox.processes("n1") if words in process.cmdline]
        assert found, [process.cmdline[:80] for process in job.sandbox.processes("n1")]
        for process in found:
            job.sandbox.exec("n1", ["kill", f"-{signal.SIGKILL.value}", str(process.pid)], check=False)

    return inject


@pytest.mark.parametrize(
    ("inject", "state"),
    [
        pytest.param(scancel, "CANCELLED", id="scancel"),
        pytest.param(notice_of_the_time_limit, "FAILED", id="time limit"),
        pytest.param(kill("verl.trainer.main_ppo"), "FAILED", id="driver killed"),
        pytest.param(kill("ray::WorkerDict"), "FAILED", id="worker killed"),
    ],
)
def test_the_window_that_had_ended_is_whole(slurm_sandbox: Any, inject: Callable[[Job], None], state: str):
    job = verl_job.submit(slurm_sandbox, steps=400)
    wait_until(lambda: 4 in steps_of(job), 1200, job.say, pause_s=1)
    inject(job)
    assert job.wait(300).state == state, job.output
    states = job.states()
    assert {role: states.get(f"nsight/{role}/rank0/step2-2") for role in ROLES} == dict.fromkeys(
        ROLES, "ok"
    ), job.output
    assert set(states.values()) == {"ok"}, states
    assert not job.leftovers()


def steps_of(job: Job) -> set[int]:
    """The steps that have come home as ended."""
    paths = job.run.glob("nodes/*/events/*.jsonl")
    rows = (json.loads(line) for path in paths for line in path.read_text().splitlines())
    return {row["step"] for row in rows if row["event"] == "step"}
