"""What Slurm's commands say, read as they print it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.sandbox import Sandbox
from tests.waits import wait_until

from rlprof_ops.slurm import client
from rlprof_ops.slurm.job_over import read_state

ELEMENTS = (  # as 22.05 prints them of an array of two, shortened
    "JobId=1 ArrayJobId=1 ArrayTaskId=1 JobName=a job UserId=root(0)\n"
    "   JobState=CANCELLED Reason=None Dependency=(null)\n   Requeue=1 Restarts=0 ExitCode=0:15\n"
    "   Command=/opt/ray.sub JobId=2 of it\n",
    "JobId=2 ArrayJobId=1 ArrayTaskId=0 JobName=a job UserId=root(0)\n"
    "   JobState=RUNNING Reason=None Dependency=(null)\n   Requeue=1 Restarts=0 ExitCode=0:0\n",
)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("lines", ["\n\n", "-o"])
def test_the_number_of_an_array_means_the_job_of_that_number(order: tuple[int, int], lines: str) -> None:
    shown = [ELEMENTS[at] for at in order]
    text = (
        "\n".join(" ".join(each.split()) for each in shown) + "\n"
        if lines == "-o"
        else "\n".join(shown) + "\n"
    )
    assert read_state(client.record_of(text, "1"), 0, "", 0) == "CANCELLED"
    assert read_state(client.record_of(text, "2"), 0, "", 0) == ""
    assert read_state(client.record_of(text, "1_1"), 0, "", 0) == "CANCELLED"
    assert read_state(client.record_of(text, "1_0"), 0, "", 0) == ""
    if lines != "-o":
        job = client.parse_shown(client.record_of(text, "1"))
        assert job is not None and (job.id, job.alone, job.state) == ("1", "1_1", "CANCELLED")


@pytest.mark.parametrize(
    ("tasks", "alone"), [("0-3%2", "1_[0-3]"), ("2,5-9", "1_[2,5-9]"), ("0,2,4,...", "1"), ("7", "1_7")]
)
def test_elements_that_wait_are_one_job(tasks: str, alone: str) -> None:
    text = ELEMENTS[0].replace("ArrayTaskId=1", f"ArrayTaskId={tasks}").replace("CANCELLED", "PENDING")
    job = client.parse_shown(text)
    assert job is not None and job.alone == alone


ASK = """
import sys
from rlprof_ops.slurm import client, job_over
number = sys.argv[1]
if sys.argv[2:] == ["cancel"]:
    client.cancel(client.show(number))
known = client.show(number)
print(known and known.state, job_over.is_cancelled(number), repr(job_over.ended_as(number)))
"""


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_one_element_of_an_array_is_ended_and_the_other_goes_on(slurm: Sandbox) -> None:
    script = slurm.shared / "sleep.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    first = slurm.sbatch(["--array=0-1", "-N1", script], cwd=slurm.shared)

    def ask(number: int | str, *words: str) -> str:
        argv = [sys.executable, "-c", ASK, str(number), *words]
        return slurm.run(argv, env={"PYTHONPATH": str(Path(client.__file__).parents[2])}).stdout.strip()

    running = "RUNNING False ''"
    wait_until(lambda: {ask(first), ask(first + 1)} == {running}, 120, lambda: ask(first))
    queued = (
        "from rlprof_ops.slurm.client import mine; print(sorted((each.id, each.alone) for each in mine()))"
    )
    argv = [sys.executable, "-c", queued]
    env = {"PYTHONPATH": str(Path(client.__file__).parents[2])}
    hiding = {"SQUEUE_STATES": "PENDING", "SQUEUE_PARTITION": "none", "SQUEUE_USERS": "nobody"}
    found = slurm.run(argv, env=env | hiding).stdout.strip()
    both = [(str(first), f"{first}_1"), (str(first + 1), f"{first}_0")]  # the last one has the array's number
    assert found == str(both)
    ask(first, "cancel")
    wait_until(lambda: ask(first) == "CANCELLED True 'CANCELLED'", 60, lambda: ask(first))
    assert ask(first + 1) == running
    told = {ask(f"{first}_{task}") for task in (0, 1)}  # submitit's names of them
    assert told == {running, "CANCELLED True 'CANCELLED'"}


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_the_end_of_a_job_moves_with_its_limit_and_with_a_suspension(slurm: Sandbox) -> None:
    script = slurm.shared / "sleep.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    job = slurm.sbatch(["-N1", "--time=2", script], cwd=slurm.shared)
    wait_until(lambda: slurm.job(job).state == "RUNNING", 60)
    program = "import sys; from rlprof_ops.slurm import job_over; print(job_over.ends_at(sys.argv[1]))"

    def end() -> float:
        argv = [sys.executable, "-c", program, f"{job}.r1"]
        own = {"TZ": "Asia/Tokyo", "SLURM_TIME_FORMAT": "relative"}  # which change nothing
        python = {"PYTHONPATH": str(Path(client.__file__).parents[2])}
        return float(slurm.run(argv, env={**python, **own}).stdout)

    first = end()
    assert abs(first - time.time() - 120) < 60
    slurm.run(["scontrol", "update", f"JobId={job}", "TimeLimit=10"])
    assert end() == first + 480
    slurm.run(["scontrol", "suspend", str(job)])
    time.sleep(3)
    slurm.run(["scontrol", "resume", str(job)])
    assert first + 482 <= end() <= first + 540


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_elements_that_wait_are_cancelled_and_those_that_run_go_on(slurm: Sandbox) -> None:
    script = slurm.shared / "sleep.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    first = slurm.sbatch(["--array=0-5%1", "-N1", script], cwd=slurm.shared)
    states = lambda: slurm.run(["squeue", "-h", "-r", "-o", "%K %T"]).stdout.split()  # noqa: E731
    waiting = [word for number in range(1, 6) for word in (str(number), "PENDING")]
    wait_until(lambda: sorted(states()) == sorted([*waiting, "0", "RUNNING"]), 60, lambda: str(states()))
    program = ASK.partition("known =")[0]
    argv = [sys.executable, "-c", program, str(first), "cancel"]
    slurm.run(argv, env={"PYTHONPATH": str(Path(client.__file__).parents[2])})
    wait_until(lambda: states() == ["0", "RUNNING"], 60, lambda: str(states()))
