"""An order to end a job on the sandbox within 600 ms of the death of a supervisor, and in its start: the
manifest is made, every window that had ended is home, no process is left.

Ray's processes are stand-ins, so that there is time for many jobs; tests/faults has a row with the real ones.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import sys
import time

import pytest
from tests import tiers
from tests.sandbox import Sandbox
from tests.supervisors import supervisor_of
from tests.waits import poll, wait_until
from tests.whole_job.jobs import HOME, Job

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1000)]

TIMES = 60 if tiers.tier() == tiers.LONG else 5
"""How many random orders: a job each, of 15 s."""
SEED = os.environ.get("RLPROF_SEED", "1")


def submit(slurm: Sandbox, name: str, setup: str = "", **knobs: str) -> Job:
    """Each node has taken a window when the driver begins, which touches a file of that name and goes on."""
    ready = slurm.shared / f"ready {name}"
    train = [sys.executable, str(HOME / "tests/supervisor/trained.py")]
    knobs = {
        "SETUP_COMMAND": f"{setup}{shlex.join(train)} $SLURM_NODEID",
        "COMMAND": f"touch {shlex.quote(str(ready))}; sleep 1000",
        "RLPROF_BACKEND": "torch",
        "RLPROF_STEPS": "2",
        "RLPROF_WORKERS": "w",
        "RLPROF_HARVEST_JOB": "0",
        "RLPROF_REPORT_SECONDS": "0",
        "RAY_LOG_SYNC_FREQUENCY": "2",
        "RLPROF_PYTHON": str(HOME / "tests/supervisor/without_ray.sh"),
        "SCALE_PYTHON": sys.executable,
        **knobs,
    }
    return Job.submit(slurm, nodes=2, **knobs)


def check(job: Job, said: str) -> None:
    """Everything is home, and nothing left."""
    assert job.record["end"]["cause"] == "signal", said
    states = {(each.worker, each.rank): each.state for each in job.manifest.captures}
    assert states == {("w", 0): "ok", ("w", 1): "ok"}, (states, said)
    assert "sync ended" not in job.output, said
    assert not poll(job.leftovers, 60, enough=lambda left: not left), (job.leftovers(), said)


@pytest.mark.parametrize("number", range(TIMES))
def test_an_order_around_a_supervisors_death_loses_nothing(slurm: Sandbox, number: int) -> None:
    rng = random.Random(f"{SEED}-{number}")
    job = submit(slurm, f"{number}")
    over = lambda: slurm.job(job.id).state.startswith(("FAIL", "CANC", "COMP"))  # noqa: E731
    wait_until((slurm.shared / f"ready {number}").exists, 120, job.say, pause_s=0.05, unless=over)
    by_job, after_s = rng.random() < 0.5, rng.uniform(0, 0.6)
    node = "n1" if rng.random() < 0.75 else "n2"
    os.kill(supervisor_of(slurm, node).host_pid, signal.SIGKILL)
    time.sleep(after_s)
    slurm.run(["scancel", *([] if by_job else ["--signal=TERM", "--batch"]), str(job.id)])
    state = job.wait()

    said = f"{node=} {after_s=:.3f} {by_job=}\n{job.say()}"
    assert state.state == ("CANCELLED" if by_job else "FAILED"), f"{state} {said}"
    assert by_job or state.exit_code == 143, f"{state} {said}"
    check(job, said)


def test_a_scancel_in_a_start_is_no_failed_start(slurm: Sandbox) -> None:
    job = submit(slurm, "start", setup="sleep 60; ")
    wait_until((job.run / "run.json").exists, 120, job.say)
    slurm.run(["scancel", "--signal=TERM", "--batch", str(job.id)])
    state = job.wait()
    assert (state.state, state.exit_code) == ("FAILED", 143), f"{state}\n{job.say()}"
    assert json.loads((job.run / "run.json").read_text())["end"]["cause"] == "signal", job.say()
    assert (job.run / "manifest.json").exists(), job.say()
    assert not poll(job.leftovers, 60, enough=lambda left: not left), job.say()
