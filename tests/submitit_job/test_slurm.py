"""RayJob on the real Slurm of the sandbox: every task a node, through submitit alone, without ray.sub and
without sacct.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.needs import need
from tests.operate.login import used_tools, without_tools
from tests.sandbox import Sandbox
from tests.submitit_job.jobs import ASKED, CAPTURES, TRAINER, say
from tests.supervisors import KEEPER, supervisor_of
from tests.waits import wait_until
from tests.whole_job.jobs import HOME

pytest.importorskip("submitit")
pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.timeout(900)]


PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=spare Nodes=ALL PriorityTier=1 GraceTime=60 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


class Submitted:
    """A RayJob that `submitter.py` sent and waits for."""

    def __init__(self, slurm, folder: Path, **options):
        folder.mkdir(exist_ok=True)
        self.slurm, self.folder = slurm, folder
        argv = [sys.executable, "-m", "tests.submitit_job.submitter", str(folder), json.dumps(options)]
        path = f"{without_tools(slurm)}:{Path(sys.prefix)}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        self.env = env = {"PYTHONPATH": f"{HOME}/python:{HOME}", "PATH": path}
        with open(folder / "submitter.err", "wb") as err:
            self.process = slurm.popen("login", argv, env=env, cwd=HOME, stdout=-1, stderr=err, text=True)
        self.id = int(self.process.stdout.readline())

    def until(self, done: Callable[[], object], seconds: float = 240) -> None:
        wait_until(done, seconds, lambda: say(self.folder), pause_s=0.2)

    def result(self, seconds: float = 500) -> dict:
        try:
            out, _ = self.process.communicate(timeout=seconds)
            return json.loads(out.strip().splitlines()[-1])
        except Exception as error:
            self.process.kill()
            raise AssertionError(
                f"{error!r}\n{self.slurm.job(self.id).fields}\n{(self.folder / 'submitter.err').read_text()}\n{say(self.folder)}"
            ) from None


def test_three_nodes(slurm):
    nsys = {"backend": "nsight", "workers": ["policy_worker"], "steps": "5", "options": {"t": "nvtx"}}
    job = Submitted(
        slurm,
        slurm.shared / "three nodes",
        nodes=3,
        command=[*TRAINER, "--nodes", "3"],
        follow_up=True,
        request={"captures": [*ASKED["captures"], nsys]},
    )
    found = job.result()

    assert (found["exit_code"], found["cause"]) == (0, "driver_exit"), say(job.folder)
    assert found["captures"] == dict.fromkeys([*CAPTURES, "nsight/policy_worker/rank0/step5-5"], "ok"), say(
        job.folder
    )
    assert found["harvested"] and found["answer"]["arrived"] == 3
    assert (job.folder / f"{job.id}-logs" / "report.html").is_file()
    assert found["run_dir"] == str(job.folder / f"{job.id}-logs")
    assert {path.stem for path in (job.folder / f"{job.id}-logs" / "nodes").glob("*.json")} == set(
        slurm.nodes
    )
    assert slurm.wait(job.id).state == "COMPLETED"
    secrets = job.folder / f"{job.id}-logs" / ".secrets"
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets.iterdir())
    assert used_tools(slurm) == "", "sacct, rsync or enroot were asked for"


def test_rlprof_stop_drains_it(slurm):
    job = Submitted(
        slurm, slurm.shared / "stop me", nodes=2, command=[*TRAINER, "--nodes", "2", "--step-seconds", "10"]
    )
    run = job.folder / f"{job.id}-logs"
    job.until(lambda: list(run.glob("profiles/memory/policy_worker/rank0/*step2-2*")))
    said = slurm.run(
        [sys.executable, "-m", "rlprof_ops", "stop", str(job.id)],
        env=job.env,
        cwd="/",
        timeout=120,
        check=False,
    )
    found = job.result()

    assert said.returncode == 3 and "told to drain" in said.stdout, said.stdout + said.stderr
    assert (found["exit_code"], found["cause"]) == (143, "signal"), say(job.folder)
    assert found["captures"]["memory/policy_worker/rank0/step2-2"] == "ok"
    assert found["captures"]["memory/policy_worker/rank0/step4-5"] != "ok"


@pytest.mark.long
def test_a_command_that_fails(slurm):
    """And whose manifest is another job's, for which `wait_for` waits."""
    settings = {"RLPROF_HARVEST_JOB": "1"}
    job = Submitted(slurm, slurm.shared / "fails", nodes=2, command="exit 7", settings=settings)
    found = job.result()
    assert found["exit_code"] == 7, say(job.folder)
    assert int(found["harvest_job"]) > job.id and found["planned"], say(job.folder)
    assert slurm.wait(int(found["harvest_job"])).exit_code == 3
    state = slurm.wait(job.id)
    assert (state.state, state.exit_code) == ("FAILED", 7), say(job.folder)


@pytest.mark.long
def test_nodes_whose_supervisors_and_keepers_were_killed_are_brought_home(slurm):
    """On both nodes, with a window that had ended and no sync that had seen it."""
    job = Submitted(slurm, slurm.shared / "killed", nodes=2, settings={"RAY_LOG_SYNC_FREQUENCY": "600"},
                    command=[*TRAINER, "--nodes", "2", "--stuck-once", str(slurm.shared / "stuck here")])  # fmt: skip
    job.until((slurm.shared / "stuck here").exists)
    run = job.folder / f"{job.id}-logs"
    assert not list(run.glob("profiles/*/*/*/*")), say(job.folder)
    nodes = json.loads((run / "run.json").read_text())["nodes"]
    for node in nodes:
        kill_task(slurm, node)
    found = job.result()

    assert (found["exit_code"], found["cause"]) == (137, "signal"), say(job.folder)
    assert found["captures"]["memory/policy_worker/rank0/step2-2"] == "ok", say(job.folder)
    assert (run / "logs/salvage.log").exists(), say(job.folder)
    for node in nodes:
        assert json.loads((run / "nodes" / f"{node}.json").read_text())["cleared"], say(job.folder)
        assert slurm.processes(node) == []


def kill_task(slurm, node: str) -> None:
    """A node's keeper and its supervisor, before one of them can drain or another one be started."""
    supervisor = supervisor_of(slurm, node)
    [keeper] = [each for each in slurm.processes(node) if each.name == KEEPER]
    os.kill(keeper.host_pid, signal.SIGSTOP)
    for each in (supervisor, keeper):
        os.kill(each.host_pid, signal.SIGKILL)


@pytest.fixture
def preempting():
    """Two nodes, on which jobs of the partition `urgent` take the place of those in `spare`, which have a
    minute to go.
    """
    need("slurm")
    with Sandbox.up(nodes=2, extra_conf=PREEMPTION) as sandbox:
        yield sandbox


def test_a_preempted_job_takes_the_remaining_windows(preempting):
    """Preempted by Slurm itself after the first window: drained, requeued, and only the second window
    again.
    """
    slurm = preempting
    slow = [*TRAINER, "--nodes", "2", "--step-seconds", "2"]
    job = Submitted(
        slurm, slurm.shared / "requeue me", nodes=2, command=shlex.join(slow), requeue=True, partition="spare"
    )
    first = job.folder / f"{job.id}-logs"
    job.until(lambda: list(first.glob("profiles/memory/policy_worker/rank0/*step2-2*")))
    urgent = slurm.sbatch(["--partition=urgent", "-N2", "--exclusive", "--wrap", "sleep 3"], cwd=slurm.shared)
    slurm.wait(job.id, timeout=150, states=["PENDING"])
    slurm.wait(urgent, timeout=60, states=["COMPLETED"])
    assert json.loads((first / "run.json").read_text())["end"]["cause"] != "running", say(job.folder)
    start_again(slurm, job)
    found = job.result()

    assert found["exit_code"] == 0, say(job.folder)
    assert found["earlier"] == [str(first)] and found["run_dir"] == str(job.folder / f"{job.id}.r1-logs")
    assert found["planned"] == ["memory/policy_worker/rank0/step4-5"]
    assert found["captures"] == dict.fromkeys(CAPTURES, "ok"), say(job.folder)


def start_again(slurm, job: Submitted) -> None:
    """Without the two minutes that Slurm lets a requeued job wait, but not before its first start has left
    the nodes.
    """
    left = lambda: [slurm.processes(node) for node in slurm.nodes]  # noqa: E731
    wait_until(lambda: not any(left()), 60, left, pause_s=0.2)
    time.sleep(3)
    slurm.run(["scontrol", "update", f"jobid={job.id}", "starttime=now"])


def test_out_of_time_drains(slurm):
    """Without requeue: the time limit's signal drains, and result() is a summary with what came home."""
    job = Submitted(slurm, slurm.shared / "out of time", nodes=2, minutes=2, signal_delay_s=30,
                    command=[*TRAINER, "--nodes", "2", "--step-seconds", "1", "--steps", "1000"])  # fmt: skip
    found = job.result()

    assert found["exit_code"] == 140, say(job.folder)
    assert found["captures"] == dict.fromkeys(CAPTURES, "ok"), say(job.folder)
    for node in slurm.nodes:
        assert slurm.processes(node) == []
