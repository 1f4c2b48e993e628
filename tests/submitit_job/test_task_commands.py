"""What a RayJob's task does before and after its supervisor: manifests of earlier attempts, orders to end
that come early, a node whose supervisor was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlprof_ops import RayJob
from rlprof_ops.collect.harvest import run_harvest
from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.job.end_cause import STEP_KILLED
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.supervisor_env import python_environment
from rlprof_ops.submitit_job import ray_job, task_commands, task_context
from tests.hung import hung
from tests.needs import need
from tests.submitit_job.one_task import OneTask
from tests.waits import wait_until

HOME = {("w", 0, 2): "ok"}
"""The window of one_task.py, by what the manifest says of it."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., OneTask]]:
    with contextlib.ExitStack() as stack:

        def begin(**settings: str) -> OneTask:
            task = OneTask.start(tmp_path, **settings)
            stack.callback(task.end)
            return task

        yield begin


def test_a_fault_in_an_earlier_attempts_harvest_keeps_no_job_from_starting(tmp_path, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise ValueError("something odd in a file of an earlier attempt")

    monkeypatch.setattr(run_harvest, "harvest", broken)
    earlier = RunFolder(tmp_path / "4711-logs")
    earlier.create()
    earlier.run_json.write_text("{}")
    place = task_context.TaskContext("local", "4711.r1", tmp_path, 0, ("n1",), "n1", (earlier.path,))
    env = RayJob("x")._open(place, RunFolder(place.run_dir))
    assert env["RLPROF_JOB"] == "4711.r1"
    assert (earlier.path / "manifest.json").exists(), (place.run_dir / "logs/harvest.log").read_text()


def test_a_manifest_that_was_made_while_an_earlier_attempt_ran_is_made_anew(tmp_path):
    earlier = RunFolder(tmp_path / "local-7-logs")
    earlier.create()
    earlier.run_json.write_text(json.dumps({"job": "local-7", "driver": {"started_ns": 1}}))
    assert run_harvest.harvest(earlier.path).running
    assert not Manifest.is_final(earlier.path)
    place = task_context.TaskContext("local", "local-7.r1", tmp_path, 0, ("n1",), "n1", (earlier.path,))
    RayJob("x")._open(place, RunFolder(place.run_dir))
    assert Manifest.is_final(earlier.path), (place.run_dir / "logs/harvest.log").read_text()
    assert "a later attempt of the job has begun" in Manifest.load(earlier.path).notes[0]


def test_all_earlier_attempts_have_one_deadline_and_nothing_is_left_of_their_harvest(
    tmp_path, monkeypatch, capsys
):
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nsleep 1000 &\necho $! >> {tmp_path}/pids\nwait\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(task_commands, "_EARLIER_S", 6.0)
    run = RunFolder(tmp_path / "7.r2-logs")
    run.create()
    began = time.monotonic()
    task_commands.make_manifests(
        [tmp_path / "7-logs", tmp_path / "7.r1-logs"], run, python_environment(os.environ)
    )
    assert time.monotonic() - began < 60
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}/root").exists() for pid in pids), 60)
    said = capsys.readouterr().err
    assert "7-logs has no manifest" in said and "7.r1-logs has no manifest" in said, said


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_an_order_while_an_earlier_attempt_is_harvested_is_obeyed_with_a_manifest(start, tmp_path):
    """Its storage does not answer, so that nobody knows how long that takes."""
    need("fuse")
    task = start(earlier="yes")
    task.wait_for("earlier")
    with hung(task.first / "nodes"):
        (tmp_path / "begin").touch()
        log = tmp_path / f"local-{task.process.pid}.r1-logs/logs/harvest.log"
        wait_until(log.exists, 60, task.say)
        time.sleep(1)
        task.process.send_signal(signal.SIGTERM)
        found = task.summary(120)
    assert found["exit_code"] == 143, task.say()
    assert not (tmp_path / "trained").exists()
    assert (task.run / "manifest.json").exists(), task.say()
    assert not task.left(), task.say()


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_node_whose_supervisor_and_keeper_were_killed_is_brought_home(start, tmp_path):
    """As by the kernel where memory is short. Its window had ended, and no sync had seen the report."""
    task = start(RAY_LOG_SYNC_FREQUENCY="600")
    task.wait_for("trained")
    assert not list(task.run.glob("profiles/*/*/*/*")), task.say()
    task.kill()
    found = task.summary()
    assert (found["exit_code"], found["cause"]) == (137, "signal"), task.say()
    assert STEP_KILLED in found["detail"]
    assert task.states() == HOME, task.say()
    assert json.loads((task.run / "nodes" / f"{os.uname().nodename}.json").read_text())["cleared"]
    assert "no record of a clean end" in (tmp_path / "output").read_text()
    assert not task.left() and not list((tmp_path / "nodes").iterdir()), task.say()


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_supervisor_without_its_keeper_drains_and_nothing_is_salvaged(start, tmp_path):
    task = start()
    task.wait_for("trained")
    os.kill(task.keeper(), signal.SIGKILL)
    found = task.summary()
    assert (found["exit_code"], found["cause"]) == (137, "signal"), task.say()
    assert STEP_KILLED not in found["detail"], task.say()
    assert task.states() == HOME, task.say()
    assert not (task.run / "logs/salvage.log").exists() and not task.left(), task.say()
    assert not (task.run / "request.json").exists(), "it may hold secrets, and a run folder is passed on"
    assert (task.run / ".secrets/request.json").stat().st_mode & 0o077 == 0


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_start_that_nobody_recorded_has_a_manifest(start, tmp_path):
    task = start(RLPROF_PYTHON="/nowhere/python")
    found = task.summary()
    assert (found["exit_code"], found["cause"]) == (127, "startup_failed"), task.say()
    assert "exit code 127" in found["detail"], task.say()
    assert task.states() == {("w", None, 2): "missing"}, task.say()


@pytest.fixture
def two_nodes(tmp_path: Path) -> task_context.TaskContext:
    """A job whose driver began; its first node is home, the other one has said nothing."""
    run = RunFolder(tmp_path / "7-logs")
    run.create()
    run.run_json.write_text(json.dumps({"driver": {"started_ns": 5}, "end": {"cause": "driver_exit"}}))
    (run.path / "nodes/n1.json").write_text('{"cleared": true}')
    return task_context.TaskContext("slurm", "7", tmp_path, 0, ("n1", "n2"), "n1")


def end_of(place: task_context.TaskContext, drain_s: int) -> None:
    env = {
        "RLPROF_DRAIN_SECONDS": str(drain_s),
        "RLPROF_REPORT_SECONDS": "0",
        "RLPROF_RUN_DIR": str(place.run_dir),
    }
    task_commands.bring_home(place, python_environment({**os.environ, **env}), 0)


@pytest.mark.parametrize("by", ["its record", "its word"])
def test_the_manifest_is_made_when_the_other_nodes_are_home_or_their_tasks_are_over(two_nodes, by):
    run = RunFolder(two_nodes.run_dir)
    ended: list[bool] = []

    def end() -> None:
        ended.append((run.path / "manifest.json").exists())
        if by == "its record":
            (run.path / "nodes/n2.json").write_text('{"cleared": true}')
        else:
            end_of(replace(two_nodes, rank=1, node="n2"), 600)

    other = threading.Timer(2, end)
    other.start()
    end_of(two_nodes, 600)
    other.join()
    assert ended == [False] and (run.path / "manifest.json").exists()


def test_a_harvest_that_may_be_no_job_of_its_own_is_the_first_tasks(two_nodes, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    sbatch = tmp_path / "bin/sbatch"
    sbatch.write_text("#!/bin/sh\necho not from here >&2\nexit 1\n")
    sbatch.chmod(0o755)
    ran = []
    monkeypatch.setattr(
        task_commands,
        "_command",
        lambda seconds, env, log, *module: ran.append((*module[:2], round(seconds))),
    )
    monkeypatch.setattr(task_commands.job_end, "has_something", lambda run: True)
    knobs = {"RLPROF_HARVEST_JOB": "1", "RLPROF_HARVEST_SECONDS": "1800", "RLPROF_REPORT_SECONDS": "70"}
    env = {**os.environ, **knobs, "PATH": f"{sbatch.parent}:{os.environ['PATH']}"}
    env = {name: value for name, value in env.items() if name != "SLURM_JOB_END_TIME"}
    assert ray_job._order_harvest(two_nodes, python_environment(env)) == ""
    assert ran == [("rlprof_ops", "harvest", 1800), ("rlprof_ops", "report", 70)]


def test_a_node_that_is_dead_costs_a_deadline(two_nodes, monkeypatch, capsys):
    monkeypatch.setattr(task_commands, "_HEADLESS_S", 0.0)
    monkeypatch.setattr(task_commands, "_MORE_S", 0.0)
    began = time.monotonic()
    end_of(two_nodes, 1)
    assert 2 <= time.monotonic() - began < 60
    assert "node n2: no word of an end" in capsys.readouterr().err
    assert (two_nodes.run_dir / "manifest.json").exists()


def test_nobody_waits_where_the_driver_never_began(two_nodes):
    RunFolder(two_nodes.run_dir).run_json.write_text('{"end": {"cause": "startup_failed"}}')
    began = time.monotonic()
    end_of(two_nodes, 600)
    assert time.monotonic() - began < 60


def test_an_end_on_storage_that_hangs_is_told_and_over(two_nodes, monkeypatch, capsys):
    need("fuse")
    monkeypatch.setattr(task_commands, "LOOK_S", 1.0)
    with hung(two_nodes.run_dir):
        end_of(two_nodes, 600)
    assert "not done within 1 s; what it did not take is on the nodes" in capsys.readouterr().err
