"""What a node could not bring home when the storage failed comes home by the command that the job names;
how long a drain may take.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.supervisor.nodes import node_of, our_environment, place_of

from rlprof_ops.collect.drain.sequence import Budget
from rlprof_ops.collect.harvest.run_state import observe
from rlprof_ops.collect.sync.__main__ import Syncer, last_pass, record_pass
from rlprof_ops.host.background import BackgroundWriter
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.folders import pinned_run
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.request import ProfileRequest
from rlprof_ops.slurm import job_over
from rlprof_ops.supervisor import job_end, salvage
from rlprof_ops.supervisor.job_end import NodeStop
from rlprof_ops.supervisor.node.node_state import NodeState
from rlprof_ops.supervisor.run_record import RunRecord


@pytest.fixture
def place(tmp_path: Path) -> NodeContext:
    return place_of(tmp_path, run=tmp_path / "it's the run")


def record_of(place: NodeContext, writer: BackgroundWriter) -> RunRecord:
    state = NodeState.make(place.folder.path)
    return RunRecord.of(place, Settings.load({}), ProfileRequest(captures=()), state, writer)


def ending(place: NodeContext) -> NodeStop:
    return NodeStop(node_of(place, our_environment, sessions=True))


def test_the_command_brings_home_what_the_storage_did_not_take(place, tmp_path):
    writer = BackgroundWriter()
    record = record_of(place, writer)
    record.save()
    assert writer.flush(60)
    aside = tmp_path / "aside"
    place.run.path.rename(aside)  # the storage goes
    report = place.folder.path / "profiles/torch/w/rank0/a.pt.trace.json.gz"
    report.parent.mkdir(parents=True)
    report.write_bytes(b"report")
    record.driver_ended(3)
    record.ending(EndCause.DRIVER_EXIT)
    assert writer.flush(60)
    one = ending(place)
    one.node.clock = [{"at_ns": 1, "offset_ns": 2, "error_ns": 3}]
    with pytest.raises(OSError):
        one._write_record(False)
    aside.rename(place.run.path)  # and is back
    assert json.loads(place.run.run_json.read_text())["end"]["cause"] == "running"

    done = subprocess.run(
        ["sh", "-c", salvage.command_line(place, str(tmp_path))],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert (place.run.path / "profiles/torch/w/rank0/a.pt.trace.json.gz").read_bytes() == b"report"
    kept = json.loads(place.run.run_json.read_text())
    assert (kept["end"]["cause"], kept["driver"]["exit_code"]) == ("driver_exit", 3)
    node = json.loads((place.run.path / "nodes/n1.json").read_text())
    assert (node["role"], node["clean"], node["clock"], [file["state"] for file in node["files"]]) == (
        "head",
        True,
        one.node.clock,
        ["copied"],
    )
    assert not place.folder.path.exists()


def test_a_folder_that_is_gone_is_told_unless_the_node_had_ended_well(place, capsys):
    """A container's own /tmp goes with it; its node must not count as brought home."""
    writer = BackgroundWriter()
    record = record_of(place, writer)
    record.driver_started()
    assert writer.flush(60)
    shutil.rmtree(place.folder.path)
    (place.run.path / "nodes/n2.json").write_text('{"cleared": true}')

    def ended(node: str) -> bool:
        return salvage.salvage(place.folder.path, place.run.path, node, "7", seconds=5)

    assert ended("n2") and not ended("n1")
    said = capsys.readouterr().err
    assert f"rlprof: salvage: node n1: {place.folder.path} is not there (No such file or directory)" in said
    assert "not a container's own /tmp" in said
    with ContainedDir(place.run.path) as run:
        observed = observe(run)
    assert "n1" in observed.gone and "n1" not in observed.records


_TOLD_TO_END_BY_SLURM = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print(flush=True);"
    " time.sleep(60)"
)


def test_a_sync_that_slurm_has_told_to_end_before_us_has_made_no_last_pass(place, monkeypatch):
    async def drained() -> bool:
        one = ending(place)
        syncer = Syncer(place.folder.path, place.run.path, place.node)
        record_pass(
            place.folder.path, last_pass(syncer, 60)
        )  # what it did of its own accord, before the window was closed
        syncer.close()
        report = place.folder.path / "profiles/torch/w/rank0/a.pt.trace.json.gz"
        report.parent.mkdir(parents=True)
        report.write_bytes(b"report")
        sync = one.node.sync
        sync.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _TOLD_TO_END_BY_SLURM, stdout=asyncio.subprocess.PIPE
        )
        await sync.process.stdout.readline()
        return await sync.last_pass(60)

    assert asyncio.run(drained())
    assert (place.run.path / "profiles/torch/w/rank0/a.pt.trace.json.gz").read_bytes() == b"report"


@pytest.mark.parametrize(
    ("left", "clean"),
    [
        ("profiles/torch/w/rank0/a.pt.trace.json.gz", False),
        ("profiles/torch/w/rank0/a.pt.trace.json.gz.tmp", True),
    ],
)
def test_a_node_with_a_report_that_came_nowhere_keeps_its_folder(place, monkeypatch, left, clean):
    async def said_to_be_done(seconds: float) -> bool:
        return True

    one = ending(place)
    monkeypatch.setattr(one.node.sync, "last_pass", said_to_be_done)
    (place.folder.path / left).parent.mkdir(parents=True)
    (place.folder.path / left).write_bytes(b"report")

    asyncio.run(one.finish(Budget(60)))

    assert json.loads((place.run.path / "nodes/n1.json").read_text())["clean"] is clean
    assert (place.folder.path / left).exists() is not clean


def test_a_record_that_the_storage_takes_again_is_kept_nowhere_else(place, tmp_path):
    writer = BackgroundWriter()
    record = record_of(place, writer)
    record.save()
    assert writer.flush(60)
    aside = tmp_path / "aside"
    place.run.path.rename(aside)
    record.driver_ended(3)
    assert writer.flush(60)
    assert (place.folder.keep / "run.json").exists()
    aside.rename(place.run.path)
    record.ending(EndCause.DRIVER_EXIT)
    assert writer.flush(60)
    assert not (place.folder.keep / "run.json").exists()
    assert json.loads(place.run.run_json.read_text())["driver"]["exit_code"] == 3


@pytest.mark.parametrize(
    ("wait", "seconds"), [("30", 27), ("5", 4), ("0", 4), ("120", 90), ("", 90), ("UNLIMITED", 90)]
)
def test_a_cancelled_job_drains_within_slurms_patience(place, monkeypatch, wait, seconds):
    monkeypatch.setenv("RLPROF_KILL_WAIT", wait)
    assert job_end.cancelled_seconds(Settings.load({"RLPROF_DRAIN_SECONDS": "90"})) == seconds


@pytest.mark.parametrize(
    ("state", "cancelled"), [("RUNNING", False), ("COMPLETING", True), ("CANCELLED", True)]
)
def test_a_signal_to_the_step_alone_is_no_cancelled_job(tmp_path, monkeypatch, state, cancelled):
    tool = tmp_path / "scontrol"  # what Slurm 22 prints, shortened; the fault matrix asks the real one
    tool.write_text(
        f'#!/bin/sh\n[ "$*" = {shlex.quote("-o show job 7")} ] && echo \'JobId=7 JobName=x JobState={state}'
        " Reason=None'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert shutil.which("scontrol") == str(tool)
    assert job_over.is_cancelled("7.r2") is cancelled
    assert not job_over.is_cancelled("local-9")


@pytest.mark.parametrize(
    ("driver_signal", "ended_ns", "cause"),
    [(9, None, "signal"), (9, 5, "driver_exit"), (None, None, "driver_exit"), (15, None, "driver_exit")],
    ids=["killed together", "the driver alone", "an end of its own", "a signal of its own"],
)
def test_a_step_that_was_killed_is_the_cause_also_where_its_driver_went_first(
    tmp_path, monkeypatch, driver_signal, ended_ns, cause
):
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    driver = {"signal": driver_signal, "ended_ns": now_ns - 7_000_000_000}
    record = {"driver": driver, "end": {"cause": "driver_exit", "detail": ""}}
    (tmp_path / "run.json").write_text(json.dumps(record | ({"ended_ns": ended_ns} if ended_ns else {})))
    salvage.finish_run_record(pinned_run(tmp_path, tmp_path), "137")
    end = json.loads((tmp_path / "run.json").read_text())["end"]
    assert end["cause"] == cause
    assert ("its driver got SIGKILL 7." in end["detail"]) == (cause == "signal"), end


def test_a_killed_driver_whose_end_nobody_timed_hides_no_killed_step(tmp_path):
    record = {"driver": {"signal": 9, "ended_ns": None}, "end": {"cause": "driver_exit", "detail": ""}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    salvage.finish_run_record(pinned_run(tmp_path, tmp_path), "137")
    end = json.loads((tmp_path / "run.json").read_text())["end"]
    assert end == {"cause": "signal", "detail": "the step that held the cluster was killed, exit code 137"}
