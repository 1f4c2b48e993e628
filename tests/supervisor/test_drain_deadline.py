"""What a person is told of the time that is left is what happens: a drain in which everything hangs ends with
its budget, and what comes after takes no more than Slurm leaves.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.supervisor.nodes import node_of, place_of

from rlprof_ops.collect.drain.sequence import Budget, DrainSequence, DrainStep
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.submitit_job.ray_job import RayJob
from rlprof_ops.supervisor import job_end
from rlprof_ops.supervisor.job_end import ClosingCommands, NodeStop
from rlprof_ops.supervisor.node import helper_processes

DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"


@pytest.fixture
def place(tmp_path: Path) -> NodeContext:
    return place_of(tmp_path)


@pytest.fixture
def all_hangs(monkeypatch):
    """Every step of the drain, Ray's end, the sync and the storage; all are let go in the end."""
    released = threading.Event()

    def hang(*_: object, **__: object) -> None:
        released.wait(120)

    for phase in ("before_ray_stops", "after_ray_stopped"):
        steps = list(getattr(DrainSequence(Path("/n"), Path("/r"), "n1", "7"), phase)())
        hanging = [DrainStep(step.name, hang) for step in steps]
        monkeypatch.setattr(DrainSequence, phase, lambda self, *_, hanging=hanging: iter(hanging))
    monkeypatch.setattr(DrainSequence, "write_record", hang)
    monkeypatch.setattr(DrainSequence, "clear", hang)
    monkeypatch.setattr(helper_processes, "sync_command", lambda *_: [sys.executable, "-c", DEAF])
    yield
    released.set()


@pytest.mark.timeout(120)
def test_a_drain_in_which_everything_hangs_ends_with_its_budget(place, all_hangs):
    node = node_of(place, lambda: dict(os.environ), sessions=True)

    async def ray_hangs() -> None:
        await asyncio.sleep(600)

    async def end() -> float:
        node.ray.stop = ray_hangs
        node.sync.begin()
        while node.sync.process is None:
            await asyncio.sleep(0.01)
        stop = NodeStop(node)
        began = time.monotonic()
        budget = Budget(10)
        await stop.close_profilers(budget)
        await stop.finish(budget)
        return time.monotonic() - began

    took_s = asyncio.run(end())
    assert took_s < 20, f"{took_s:.1f} s of 10"  # before: 33 s
    assert node.sync.process is not None and node.sync.process.returncode is not None, "the sync still runs"


def test_after_a_drain_no_command_begins_that_slurm_would_cut_off(place, capsys):
    closing = ClosingCommands(NodeStop(node_of(place, sessions=False)), os.environ)
    asyncio.run(closing.harvest(left_s=0.5))
    assert (
        f"no time is left for the harvest; run scripts/harvest.sh {place.run.path}" in capsys.readouterr().err
    )
    assert not (place.run.path / "manifest.json").exists()


@pytest.fixture
def job_of_slurm(tmp_path, monkeypatch):
    """Job 7 as its environment tells its end, in seconds from now, and as scontrol does, which tells none at
    all if that is None.
    """
    monkeypatch.setattr(job_end, "_ASK_SECONDS", 60.0)

    def make(told_s: float | None, asked_s: float | None, state: str = "RUNNING") -> None:
        at = round(time.time() + (asked_s or 0))
        shown = f"JobId=7 JobName=x JobState={state} Restarts=0 StartTime=5 EndTime={at} Deadline=N/A"
        tool = tmp_path / "scontrol"
        answer = "exit 1" if asked_s is None else f"echo '{shown}'"
        tool.write_text(f'#!/bin/sh\n[ "$*$SLURM_TIME_FORMAT" = "-o show job 7%s" ] || exit 9\n{answer}\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
        if told_s is not None:
            monkeypatch.setenv("SLURM_JOB_END_TIME", str(round(time.time() + told_s)))

    return make


@pytest.mark.parametrize(
    ("told_s", "asked_s", "left_s"),
    [
        pytest.param(-1800, 900, 900, id="suspended for longer than it had left, then resumed"),
        pytest.param(60, 900, 900, id="extended"),
        pytest.param(60, 20, 20, id="shortened"),
        pytest.param(None, 900, 3600, id="Slurm 22.05 tells none"),
        pytest.param(60, None, 60, id="Slurm does not answer"),
        pytest.param(-1800, None, 3600, id="it runs, and Slurm does not answer"),
        pytest.param(None, None, 3600, id="nobody tells"),
        pytest.param(5000, 20, 3600, id="enough for all"),
    ],
)
def test_the_time_that_is_left_is_slurms_and_not_that_of_the_jobs_start(
    job_of_slurm, told_s, asked_s, left_s
):
    job_of_slurm(told_s, asked_s)
    assert left_s - 15 < job_end.seconds_of_job() <= left_s + 1


def test_a_job_that_is_being_ended_has_no_limit_to_come(job_of_slurm):
    job_of_slurm(-1, 0, "COMPLETING")
    assert job_end.seconds_of_job(50) == 50  # KillWait is the limit then


def test_a_slurm_that_hangs_keeps_a_drain_for_a_moment(job_of_slurm, tmp_path, monkeypatch):
    job_of_slurm(60, None)
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(job_end, "_ASK_SECONDS", 0.5)
    began = time.monotonic()
    assert 30 < job_end.seconds_of_job() <= 61
    assert time.monotonic() - began < 30  # and not the 60 s of the tool


def test_a_ray_job_that_was_suspended_drains_before_it_is_queued_again(job_of_slurm):
    job_of_slurm(-1800, 900)
    knobs = {"RLPROF_DRAIN_SECONDS": "90", "RLPROF_HARVEST_SECONDS": "120"}
    assert RayJob("x", requeue=True, settings=knobs)._seconds_left() == 225


def test_a_head_that_was_suspended_has_time_for_its_harvest(job_of_slurm, place):
    job_of_slurm(-1800, 900)
    left_s = asyncio.run(NodeStop(node_of(place, sessions=False)).seconds_to_close(None))
    assert 870 < left_s < 900
