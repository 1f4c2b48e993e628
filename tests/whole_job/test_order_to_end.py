"""An order to end a job on the sandbox within 600 ms of the death of the head's supervisor, and in its start: the manifest is
made, every window that had ended is home, no process is left.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import time

import pytest
from tests.sandbox import Sandbox
from tests.supervisors import supervisor_of
from tests.waits import wait_until
from tests.whole_job.jobs import Job

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(900)]

TIMES = 60 if os.environ.get("RLPROF_FAULTS") == "all" else 2
SEED = int(os.environ.get("RLPROF_SEED", "1"))
TRAINER = """
import os, pathlib, sys, time
import ray
from rlprof_ops.runtime import profiler

@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, rank):
        self.prof = profiler.from_env(worker="w", rank=rank, world_size=2)
    def step(self, step):
        with self.prof.step(step):
            time.sleep(0.05)

ray.init(log_to_driver=False, logging_level="error")
workers = [Worker.options(scheduling_strategy="SPREAD").remote(rank) for rank in range(2)]
for step in range(1, 100000):
    ray.get([worker.step.remote(step) for worker in workers])
    if step == 4:
        time.sleep(1.0)
        pathlib.Path(sys.argv[1]).touch()
"""


def submit(slurm: Sandbox, number: int) -> tuple[Job, object]:
    script, ready = slurm.shared / "endless.py", slurm.shared / f"ready{number}"
    script.write_text(TRAINER)
    ready.unlink(missing_ok=True)
    knobs = {
        "COMMAND": shlex.join(["python", "-u", str(script), str(ready)]),
        "RLPROF_BACKEND": "torch",
        "RLPROF_STEPS": "2:4",
        "RLPROF_WORKERS": "w",
        "RLPROF_HARVEST_JOB": "0",
        "RLPROF_REPORT_SECONDS": "0",
        "RAY_LOG_SYNC_FREQUENCY": "2",
    }
    return Job.submit(slurm, nodes=2, **knobs), ready


@pytest.mark.parametrize("number", range(TIMES))
def test_an_order_around_a_supervisors_death_loses_nothing(slurm: Sandbox, number: int) -> None:
    rng = random.Random(f"{SEED}-{number}")
    job, ready = submit(slurm, number)
    over = lambda: slurm.job(job.id).state.startswith(("FAIL", "CANC", "COMP"))  # noqa: E731
    wait_until(ready.exists, 240, job.say, pause_s=0.05, unless=over)
    by_job, after_s = rng.random() < 0.5, rng.uniform(0, 0.6)
    os.kill(supervisor_of(slurm, "n1").host_pid, signal.SIGKILL)
    time.sleep(after_s)
    if by_job:
        slurm.run(["scancel", str(job.id)])
    else:
        slurm.run(["scancel", "--signal=TERM", "--batch", str(job.id)])
    state = job.wait()

    said = f"{after_s=} {by_job=}\n{job.say()}"
    assert state.state == ("CANCELLED" if by_job else "FAILED"), f"{state} {said}"
    assert by_job or state.exit_code == 143, f"{state} {said}"
    assert job.record["end"]["cause"] == "signal", said
    states = {(each.worker, each.rank): each.state for each in job.manifest.captures}
    assert states == {("w", 0): "ok", ("w", 1): "ok"}, (states, said)
    assert not wait_for_none(job), said


def wait_for_none(job: Job) -> list[str]:
    until = time.monotonic() + 20
    while (left := job.leftovers()) and time.monotonic() < until:
        time.sleep(0.2)
    return left


def test_a_scancel_in_a_start_is_no_failed_start(slurm: Sandbox) -> None:
    job = Job.submit(slurm, nodes=2, COMMAND="true", SETUP_COMMAND="sleep 60", RLPROF_HARVEST_JOB="0")
    wait_until(lambda: (job.run / "run.json").exists(), 120, job.say)
    slurm.run(["scancel", "--signal=TERM", "--batch", str(job.id)])
    state = job.wait()
    assert (state.state, state.exit_code) == ("FAILED", 143), f"{state}\n{job.say()}"
    assert json.loads((job.run / "run.json").read_text())["end"]["cause"] == "signal", job.say()
    assert (job.run / "manifest.json").exists(), job.say()
    assert "sync ended" not in job.output
    assert not wait_for_none(job)
