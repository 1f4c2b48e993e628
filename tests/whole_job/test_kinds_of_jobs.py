"""Kinds of jobs beside the plain one."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from tests.sandbox import Sandbox
from tests.waits import wait_until
from tests.whole_job.jobs import HOME, Job

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.timeout(1000)]


GPUS = """python - <<'END'
import pathlib, time, ray
from rlprof_ops.runtime import profiler
ray.init(log_to_driver=False)
print("GPUs", ray.cluster_resources().get("GPU", 0.0), flush=True)
with profiler.from_env(worker="controller", rank=0).step(1):
    for _ in range(1500):
        time.sleep(0.2)
        if pathlib.Path(GO).exists():
            break
print("done", flush=True)
END"""


def test_a_heterogeneous_job_is_refused(slurm: Sandbox) -> None:
    job = Job.submit(slurm, ":", "-N1", nodes=1, COMMAND="true")
    state = job.wait(timeout=150)
    assert (state.state, state.exit_code) == ("FAILED", 2), job.output
    assert "a heterogeneous job of 2 components" in job.output
    assert not job.run.exists()


def test_each_element_of_an_array_is_a_job_and_one_that_is_suspended_goes_on(slurm: Sandbox) -> None:
    """Each asks for GPUs by task, of which a step of one task a node would get one."""
    folder = slurm.shared / "an array"
    folder.mkdir()
    wishes = ["--array=0-1", "-N1", "--ntasks-per-node=2", "--gpus-per-task=1"]
    env = {"RLPROF_VENV": sys.prefix, "COMMAND": GPUS.replace("GO", repr(str(folder / "go")))}
    slurm.sbatch([*wishes, HOME / "ray.sub"], env=env, cwd=folder)

    def logs(text: str) -> list[Path]:
        found = folder.glob("*-logs/logs/driver.log")
        return [path for path in found if text in path.read_text(errors="replace")]

    def say() -> str:
        return "\n".join(
            path.read_text() for path in [*folder.glob("*-logs/logs/*.log"), *folder.glob("*.out")]
        )

    wait_until(lambda: len(logs("GPUs ")) == 2, 300, say, pause_s=0.3)
    assert len(logs("GPUs 2.0")) == 2, say()
    run = logs("GPUs 2.0")[0].parents[1]
    job = run.name.removesuffix("-logs")
    slurm.run(["scontrol", "suspend", job])
    slurm.wait(int(job), states="SUSPENDED")
    slurm.run(["scontrol", "resume", job])
    (folder / "go").touch()  # none of them has ended before
    runs = sorted(folder.glob("*-logs"))
    for each in runs:
        assert slurm.wait(int(each.name.removesuffix("-logs")), timeout=300).state == "COMPLETED"
        record = json.loads((each / "run.json").read_text())
        assert record["end"]["cause"] == "driver_exit" and record["driver"]["exit_code"] == 0
        # Nothing was asked for: its page shows the whole run alone.
        answer = json.loads((each / "report.json").read_text())
        assert not answer["coverage"]["planned"] and len(answer["whole_run"]["steps"]) == 1, answer
        assert (each / "report.html").is_file()
    assert len(runs) == len(logs("done")) == 2, "each with a run folder of its own"


def test_a_job_that_takes_nothing_of_the_shell_it_was_submitted_in_runs_on_its_nodes(slurm: Sandbox) -> None:
    """`sbatch --export=NONE` is for all of a job's steps, unless ray.sub takes it back."""
    folder = slurm.shared / "own environment"
    folder.mkdir()
    given = {
        "RLPROF_HOME": HOME,
        "RLPROF_VENV": sys.prefix,
        "COMMAND": "echo trained",
        "RLPROF_HARVEST_JOB": "0",
    }
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in given.items()]
    script = "\n".join(["#!/bin/bash", *lines, f"bash {shlex.quote(str(HOME / 'ray.sub'))}", ""])
    job = Job(
        slurm, slurm.sbatch(["-N2", "--signal=B:USR2@120", "--export=NONE"], cwd=folder, input=script), folder
    )
    assert job.wait().exit_code == 0, job.say()
    assert "trained" in (job.run / "logs/driver.log").read_text()
