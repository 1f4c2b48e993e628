"""RayJob on the real Slurm of the sandbox: every task a node, through submitit alone, without ray.sub and without sacct."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import pytest

from tests.job.jobs import HOME
from tests.submitit_jobs.jobs import CAPTURES, TRAINER, say

pytest.importorskip("submitit")
pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.timeout(290)]


class Submitted:
    """A RayJob that `submitter.py` sent and waits for."""

    def __init__(self, slurm, folder: Path, **options):
        folder.mkdir(exist_ok=True)
        self.slurm, self.folder = slurm, folder
        argv = [sys.executable, "-m", "tests.submitit_jobs.submitter", str(folder), json.dumps(options)]
        env = {"PYTHONPATH": f"{HOME}/python:{HOME}", "PATH": f"{Path(sys.prefix)}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        with open(folder / "submitter.err", "wb") as err:
            self.process = slurm.popen("login", argv, env=env, cwd=HOME, stdout=-1, stderr=err, text=True)
        self.id = int(self.process.stdout.readline())

    def result(self, seconds: float = 200) -> dict:
        try:
            out, _ = self.process.communicate(timeout=seconds)
            return json.loads(out.strip().splitlines()[-1])
        except Exception as error:
            self.process.kill()
            raise AssertionError(f"{error!r}\n{self.slurm.job(self.id).fields}\n{(self.folder / 'submitter.err').read_text()}\n{say(self.folder)}") from None


def test_three_nodes(slurm):
    job = Submitted(slurm, slurm.shared / "three nodes", nodes=3, command=[*TRAINER, "--nodes", "3"])
    found = job.result()

    assert (found["exit_code"], found["cause"]) == (0, "driver_exit"), say(job.folder)
    assert found["captures"] == dict.fromkeys(CAPTURES, "ok"), say(job.folder)
    assert found["run_dir"] == str(job.folder / f"{job.id}-logs")
    assert {path.stem for path in (job.folder / f"{job.id}-logs" / "nodes").glob("*.json")} == set(slurm.nodes)
    assert slurm.wait(job.id).state == "COMPLETED"
    secrets = job.folder / f"{job.id}-logs" / ".secrets"
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets.iterdir())


def test_a_command_that_fails(slurm):
    job = Submitted(slurm, slurm.shared / "fails", nodes=2, command="exit 7")
    assert job.result()["exit_code"] == 7, say(job.folder)
    state = slurm.wait(job.id)
    assert (state.state, state.exit_code) == ("FAILED", 7), say(job.folder)


def test_requeue_takes_the_remaining_windows(slurm):
    """Preempted after the first window, with submitit's own signal: drained, requeued, and only the second window again."""
    slow = [*TRAINER, "--nodes", "2", "--step-seconds", "2"]
    job = Submitted(slurm, slurm.shared / "requeue me", nodes=2, command=shlex.join(slow), requeue=True)
    first = job.folder / f"{job.id}-logs"
    deadline = time.monotonic() + 120
    while not list(first.glob("profiles/memory/policy_worker/rank0/*step2-2*")):
        assert time.monotonic() < deadline, say(job.folder)
        time.sleep(0.2)
    slurm.run(["scancel", "--signal=USR2", str(job.id)])
    slurm.wait(job.id, timeout=60, states=["PENDING"])
    assert json.loads((first / "run.json").read_text())["end"]["cause"] != "running", say(job.folder)
    start_again(slurm, job)
    found = job.result()

    assert found["exit_code"] == 0, say(job.folder)
    assert found["earlier"] == [str(first)] and found["run_dir"] == str(job.folder / f"{job.id}.r1-logs")
    assert found["planned"] == ["memory/policy_worker/rank0/step4-5"]
    assert found["captures"] == dict.fromkeys(CAPTURES, "ok"), say(job.folder)


def start_again(slurm, job: Submitted) -> None:
    """Without the two minutes that Slurm lets a requeued job wait, but not before its first start has left the nodes."""
    deadline = time.monotonic() + 60
    while any(slurm.processes(node) for node in slurm.nodes):
        assert time.monotonic() < deadline, [slurm.processes(node) for node in slurm.nodes]
        time.sleep(0.2)
    time.sleep(3)
    slurm.run(["scontrol", "update", f"jobid={job.id}", "starttime=now"])


def test_out_of_time_drains(slurm):
    """Without requeue: the time limit's signal drains, and result() is a summary with what came home."""
    job = Submitted(slurm, slurm.shared / "out of time", nodes=2, minutes=2, signal_delay_s=60,
                    command=[*TRAINER, "--nodes", "2", "--step-seconds", "1", "--steps", "1000"])  # fmt: skip
    found = job.result()

    assert found["exit_code"] == 140, say(job.folder)
    assert found["captures"] == dict.fromkeys(CAPTURES, "ok"), say(job.folder)
    for node in slurm.nodes:
        assert slurm.processes(node) == []
