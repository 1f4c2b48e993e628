"""Windows inside steps that are too short for them, and those that nobody takes: what is said of each."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import shlex
import shutil
import time
from pathlib import Path

import pytest
from tests.needs import need
from tests.nsys_stand_in import executable, slow_nsys
from tests.window.test_matrix import PART_ASKED, Job, rows_of

from rlprof_ops.backends.contract import CaptureError, Where
from rlprof_ops.backends.torch.torch_recorder import TorchRecorder
from rlprof_ops.backends.window_support import PROCESS, SUPERVISOR
from rlprof_ops.collect.event_logs import read_node
from rlprof_ops.request import request_from_dict
from rlprof_ops.request.check import check_request
from rlprof_ops.runtime.active_profiler import Profiler
from rlprof_ops.runtime.clock_file import ClockFile, ClockState
from rlprof_ops.runtime.follower import Follower
from rlprof_ops.runtime.process.worker_identity import find_identity


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.whole
@pytest.mark.nsys
def test_parts_that_a_step_is_too_short_for(job: Job) -> None:
    need("nsys")
    both = {"workers": "policy", "options": {"t": "nvtx"}}
    captures = [
        {**both, "steps": "1", "at": "train+1s", "for": "10min"},
        {**both, "steps": "2", "at": "train+1h"},
    ]
    job.train("in_even_ticks", captures)
    rows = rows_of(job, captures)
    assert rows[1]["state"] == "truncated" and rows[1]["report"]
    assert "step 1 ended after" in rows[1]["reason"]
    assert rows[1]["reason"].endswith("s, before train+1s+600s: the window closed with it")
    assert rows[2]["state"] == "missing"
    assert rows[2]["reason"].startswith("step 2 ended after")
    assert rows[2]["reason"].endswith("s, before train+3600s")


SHORT = [
    {"workers": "policy", "steps": "1:3", "at": "generation", "for": "1200ms", "options": {"t": "nvtx"}},
]
LONG = [{**SHORT[0], "for": "4500ms"}]  # on a busy machine nsys has begun by then
BUSY = ", while the profiler was still busy with the window of step 1: leave steps between them"


@pytest.mark.whole
@pytest.mark.nsys
def test_a_report_that_is_written_for_longer_than_the_next_step(job: Job, tmp_path: Path) -> None:
    """Once the second window opened after its step, and its report was empty."""
    need("nsys")
    slow = slow_nsys(tmp_path / "slow", "sleep 12")
    job.train("in_long_ticks", LONG, RLPROF_NSYS=str(slow))
    rows = rows_of(job, LONG)
    assert rows[1]["report"] and rows[1]["taken_s"], rows
    assert rows[2]["state"] == "missing", rows
    assert rows[2]["reason"].startswith("step 2 ended after") and rows[2]["reason"].endswith(f"s{BUSY}")


@pytest.mark.whole
@pytest.mark.nsys
def test_a_profiler_that_begins_when_its_window_is_over(job: Job, tmp_path: Path) -> None:
    need("nsys")
    real = shlex.quote(str(shutil.which("nsys")))
    slow = f'#!/bin/bash\n[ "$1" != start ] || sleep 6\nexec {real} "$@"\n'
    job.train("in_short_ticks", SHORT, RLPROF_NSYS=str(executable(tmp_path / "nsys", slow)))
    rows = rows_of(job, SHORT)
    assert [row["state"] for row in rows.values()] == ["missing", "missing"], rows
    took = r", before the profiler recorded: its start took [6-9.][\d.]* s"
    longer = r"generation\+0s\+1.2s was over" + took + "; give 'for' more than that"
    assert re.fullmatch(rf"step 1 ended after [\d.]+ s{took}|{longer}", rows[1]["reason"])
    assert rows[2]["reason"].endswith(BUSY)
    assert not list(job.node_dir.rglob("*.nsys-rep"))


@pytest.mark.parametrize("follows", [False, True])
def test_torchs_first_start_makes_no_window_beside_it_late(
    follows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds on a busy machine: as long memory's window beside it was late."""
    need("torch")
    importlib.import_module("torch")  # as in what trains: its import is not its first start
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    monkeypatch.setattr(TorchRecorder, "prepare", lambda self, step: time.sleep(4))
    both = {"workers": "policy", "steps": "1", "at": "300ms", "for": "2s"}
    captures = [{"backend": "torch", **both}, {"backend": "memory", "options": {"host": "true"}, **both}]
    clock = ClockFile(tmp_path, write=True)
    place = find_identity("policy", 0, None, {**os.environ, "RLPROF_NODE": "n1"})
    specs = request_from_dict({"captures": captures}).captures
    prof = Profiler(place, specs, follows=follows)
    if follows:
        clock.store(ClockState(1, time.time_ns(), True, 0, time.monotonic_ns()))
        with Follower(prof, ClockFile(tmp_path), None).task("train"):
            pass
    else:
        prof.start_step(1)
    prof.close()
    ended = [event for log in read_node(tmp_path / "events") for event in log.windows]
    [memory] = [event for event in ended if (event.backend, event.event) == ("memory", "closed")]
    assert memory.taken_s == pytest.approx((0.3, 2.3), abs=1.5), memory  # a busy machine's own lateness


def test_a_report_that_is_written_makes_no_window_beside_it_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once memory's window beside verl's engine was 1.2 s too long: as long as torch wrote its trace."""
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    options = {"host": "true"}
    capture = {"backend": "memory", "workers": "policy", "steps": "1", "for": "1s", "options": options}
    place = find_identity("policy", 0, None, {**os.environ, "RLPROF_NODE": "n1"})
    prof = Profiler(place, request_from_dict({"captures": [capture]}).captures)
    prof.start_step(1)
    time.sleep(0.5)
    with prof._captures._changing:  # as while a window of another backend closes
        time.sleep(6)
    prof.close()
    [log] = read_node(tmp_path / "events")
    [memory] = [event for event in log.windows if event.event == "closed"]
    assert 0.9 <= memory.taken_s[1] < 4, memory  # a busy machine's own lateness
    with gzip.open(tmp_path / memory.path, "rt") as packed:
        samples = json.load(packed)["samples"]
    assert 0.3 <= (samples[-1][0] - samples[0][0]) / 1e9 < 4


def test_a_report_that_is_written_for_longer_than_a_window_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch wrote 2.5 s for verl's engine: memory's window was over, and nothing said of what."""
    need("torch")
    importlib.import_module("torch")
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))

    def slow(self: TorchRecorder) -> Path:
        time.sleep(8)
        raise CaptureError("it wrote nothing")

    monkeypatch.setattr(TorchRecorder, "prepare", lambda self, step: None)
    monkeypatch.setattr(TorchRecorder, "open", lambda self, target: None)
    monkeypatch.setattr(TorchRecorder, "close", slow)
    both = {"workers": "policy", "steps": "1"}
    torch = {"backend": "torch", **both, "at": "0s", "for": "3s"}
    memory = {"backend": "memory", **both, "at": "6s", "for": "500ms", "options": {"host": "true"}}
    place = find_identity("policy", 0, None, {**os.environ, "RLPROF_NODE": "n1"})
    prof = Profiler(place, request_from_dict({"captures": [torch, memory]}).captures)
    prof.start_step(1)
    for _ in range(20):  # opened by the first one, closed by the first after its time
        with prof.range("train"):
            time.sleep(0.2)
    prof.close()
    [log] = read_node(tmp_path / "events")
    [missed] = [event for event in log.windows if (event.backend, event.event) == ("memory", "failed")]
    busy = "while the profiler was still busy with the window of torch in step 1: leave steps between them"
    assert missed.reason == f"6s+500ms was over, {busy}"


def test_the_words_of_a_refusal_are_the_same_for_all_who_are_asked() -> None:
    for name in ("rocprof_sys",):
        capture = {"backend": name, "workers": "policy", "steps": "5", **PART_ASKED}
        request = request_from_dict({"captures": [capture]})
        said = set()
        for driver in ("", PROCESS, SUPERVISOR):
            with pytest.raises(Exception, match="no window inside a step") as caught:
                check_request(request, Where(driver=driver))
            said.add(str(caught.value))
        assert len(said) == 1


def test_a_capture_range_has_no_part() -> None:
    capture = {"workers": "policy", "steps": "5", "options": {"capture-range": "nvtx"}, **PART_ASKED}
    with pytest.raises(Exception, match="leave capture-range out, for a session, or at and for"):
        check_request(request_from_dict({"captures": [capture]}))
