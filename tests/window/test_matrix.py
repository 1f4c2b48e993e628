"""Every cell of the matrix of windows, who opens one x backend x what is asked of it: taken by a real
process, or refused in the same words by all who are asked.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.backends.rocprof_sys import rocprof_stand_in
from tests.needs import need
from tests.real_nsys import nvtx_ranges
from tests.supervisor.steps.test_windows import WORKER, demand, running

from rlprof_ops import backends
from rlprof_ops.backends.contract import wrap_of
from rlprof_ops.backends.window_support import (
    CAPTURE_RANGE,
    COUNTED,
    COUNTS_VLLM,
    DRIVERS,
    EACH_PHASE,
    EACH_STEP,
    FEATURES,
    MAX_MB,
    ON_DEMAND,
    OUTPUT_DIR,
    PART,
    PROCESS,
    RANKS,
    RETRY,
    SEVERAL,
    SUPERVISOR,
    TRAINER,
    support,
)
from rlprof_ops.backends.wrapping import Identity
from rlprof_ops.collect.event_logs import ProcessLog, WindowEvent, read_node
from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.collect.harvest.run_harvest import harvest
from rlprof_ops.job.knobs import python_path
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps, Window, request_from_dict
from rlprof_ops.runtime.on_demand.watcher import CaptureRequest
from rlprof_ops.runtime.process import session_file
from rlprof_ops.submit.missing_captures import missing_request
from rlprof_ops.supervisor.steps.session_windows import Windows
from rlprof_ops.window.output_dir import OutputDir

pytestmark = pytest.mark.whole

PROGRAM = Path(__file__).with_name("trained.py")
STEPS = "2:4, 6"  # two windows of steps, three steps
OF_STEPS = [(2, 4, None), (6, 7, None)]
OF_PHASES = [(step, step + 1, phase) for step in (2, 3, 6) for phase in ("generation", "train")]
# What an actor of an unmodified trainer does: each tick is a range, called by when it began.
TICKS = """
import time, nvtx
from rlprof_ops.runtime.process import session_file

session_file.register()
while True:
    with nvtx.annotate(f"at {time.time():.2f}"):
        time.sleep(0.02)
"""
# One whose session grows by some 20 MB a second.
FLOOD = """
import time, nvtx
from rlprof_ops.runtime.process import session_file

session_file.register()
while True:
    for _ in range(1000):
        with nvtx.annotate("a range with a name of some length"):
            pass
    time.sleep(0.01)
"""
LARGE = "iB in it, so that it stays within max_mb"
# The same two seconds of a step, whatever tells of it; generation takes five, for a busy machine is late.
PART_ASKED = {"at": "generation+1s", "for": "2s"}
COUNTED_ASKED = ({"after": "50%", "for": "2s"}, {"tokens": "20:30"})
ASKED_OF_STEPS = [pytest.param(each, id=next(iter(each))) for each in (PART_ASKED, *COUNTED_ASKED)]

taken: set[tuple[str, str, str]] = set()


def takes(drivers: tuple[str, ...], names: tuple[str, ...], *features: str) -> Callable[[Any], Any]:
    """Says which cells a test takes on a real process."""
    taken.update((driver, name, feature) for driver in drivers for name in names for feature in features)
    return lambda test: test


class Job:
    """One node's part of a job: a folder for it, and processes that train."""

    def __init__(self, folder: Path) -> None:
        self.node_dir, self.copies, self.run = folder / "node", folder / "copies", folder / "4711-logs"
        for name in ("tmp", "events", "profiles"):
            (self.node_dir / name).mkdir(parents=True)

    def train(
        self, driver: str, captures: list[dict[str, Any]], rank: int = 0, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the program to its end, under the profiler that its captures want."""
        request = request_from_dict({"captures": captures, "output_dir": str(self.copies)})
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "NRL_"))}
        env |= {
            "PYTHONPATH": python_path(None),
            "TMPDIR": str(self.node_dir / "tmp"),
            "RLPROF_NODE_DIR": str(self.node_dir),
            "RLPROF_NODE": "n1",
            "RLPROF_WORKER": "policy",
            "RLPROF_RANK": str(rank),
            "RLPROF_REQUEST_JSON": request.to_json(),
            **more,
        }
        argv = (sys.executable, str(PROGRAM), driver)
        for spec in request.for_worker("policy", rank):
            wrap = wrap_of(backends.get(spec.backend))
            if wrap is not None:
                made = wrap.make(Identity("policy", rank), spec, env, env).command(argv, env)
                argv, env = made.argv, dict(made.env)
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stderr
        return done

    def end(self) -> None:
        """What the drain does for the request's folder."""
        copies = OutputDir(str(self.copies), pytest.fail)
        copies.copy_rest(self.node_dir)
        copies.finish(100)

    def logs(self) -> list[ProcessLog]:
        return read_node(self.node_dir / "events")

    def ended(self, name: str) -> list[WindowEvent]:
        """What became of the windows of a backend."""
        found = [event for log in self.logs() for event in log.windows]
        return [event for event in found if event.backend == name and event.event != "opened"]

    def harvested(self, captures: list[dict[str, Any]]) -> dict[str, Any]:
        """The manifest of the job, with what its sync brings home."""
        run = self.run
        (run / "nodes/n1").mkdir(parents=True)
        shutil.copytree(self.node_dir / "events", run / "nodes/n1/events")
        (self.node_dir / "inplace").mkdir(exist_ok=True)
        for folder in ("profiles", "inplace"):
            shutil.copytree(self.node_dir / folder, run / "profiles", dirs_exist_ok=True)
        record = {"schema": 1, "node": "n1", "clean": True, "files": [], "recovered": [], "failed": []}
        (run / "nodes/n1.json").write_text(json.dumps(record))
        told = {"schema": 1, "job": "4711", "nodes": ["n1"], "request": {"captures": captures}}
        end, driver = {"cause": "driver_exit"}, {"started_ns": 2, "ended_ns": 3, "exit_code": 0}
        (run / "run.json").write_text(json.dumps({**told, "end": end, "driver": driver}))
        harvest(run)
        found: dict[str, Any] = json.loads((run / "manifest.json").read_text())
        return found

    def copied(self) -> set[str]:
        return {path.name for path in self.copies.rglob("*") if path.is_file()}


def windows_of(events: list[WindowEvent]) -> list[tuple[int, int | None, str | None]]:
    assert all(event.event == "closed" for event in events), [event.reason for event in events]
    return [(event.start, event.stop, event.phase) for event in events]


def rows_of(job: Job, captures: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["start"]: row for row in job.harvested(captures)["captures"]}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@takes((PROCESS, SUPERVISOR), ("torch", "memory"), EACH_STEP, EACH_PHASE, SEVERAL, RANKS, OUTPUT_DIR)
@takes((PROCESS, SUPERVISOR), ("torch",), MAX_MB)
@pytest.mark.parametrize("driver", [PROCESS, SUPERVISOR])
@pytest.mark.parametrize(("torch", "memory"), [("step", "phase"), ("phase", "step")])
def test_torch_and_memory(job: Job, driver: str, torch: str, memory: str) -> None:
    need("torch")
    small = {"max_mb": "0.0001"}
    captures = [
        {"backend": "torch", "workers": "policy", "ranks": [0], "steps": STEPS, "each": torch},
        {"backend": "torch", "workers": "policy", "steps": "5", "each": torch, "options": small},
        {"backend": "memory", "workers": "policy", "ranks": [0], "steps": STEPS, "each": memory},
    ]
    captures[2]["options"] = {"host": "true"}
    job.train(driver, captures)
    for name, each in (("torch", torch), ("memory", memory)):
        whole = [event for event in job.ended(name) if event.start != 5]
        assert windows_of(whole) == (OF_STEPS if each == "step" else OF_PHASES)
        assert {Path(event.path).name for event in whole} <= job.copied()
    large = [event for event in job.ended("torch") if event.start == 5]
    assert {event.event for event in large} == {"failed"} and "max_mb" in large[0].reason


@takes((PROCESS,), ("nsight", "torch"), MAX_MB)
@pytest.mark.nsys
@pytest.mark.parametrize(("name", "max_mb"), [("nsight", "40"), ("torch", "3")])
def test_a_window_is_closed_before_its_report_is_too_large(job: Job, name: str, max_mb: str) -> None:
    need("nsys" if name == "nsight" else "torch")
    options = {"max_mb": max_mb} | ({"t": "nvtx"} if name == "nsight" else {"all_threads": "true"})
    captures = [{"backend": name, "workers": "policy", "steps": step, "options": options} for step in "12"]
    job.train("flood", captures)
    [large] = [event for event in job.ended(name) if event.start == 2]
    assert (large.event, large.partial) == ("closed", True), large
    row = rows_of(job, captures)[2]
    assert row["state"] == "truncated" and LARGE in row["reason"], row
    report = job.node_dir / large.path
    if name == "torch":
        with gzip.open(report) as packed:
            assert len(packed.read()) <= float(max_mb) * 1e6


@takes((SUPERVISOR, ON_DEMAND), ("nsight",), MAX_MB)
@pytest.mark.nsys
def test_a_session_is_closed_before_its_report_is_too_large(job: Job) -> None:
    need("nsys")
    small = {"t": "nvtx", "max_mb": "40"}
    captures = [{"workers": "rollout", "steps": "1:3", "options": small}]
    asked = CaptureRequest("large", ("*",), None, "auto", {"max_mb": "40"}, None, 30.0)

    async def steps() -> None:
        windows = Windows(job.node_dir, request_from_dict({"captures": captures}), print)
        await windows.begin(1)
        async with asyncio.timeout(150):
            while not job.ended("nsight"):
                await asyncio.sleep(0.1)
        for step in (1, 2):
            windows.end(step)
            await windows.begin(step + 1)
        windows.end(3)
        before_s = time.monotonic()
        await windows.take_seconds(asked)
        assert time.monotonic() - before_s >= 30
        await windows.close()

    with running(job.node_dir, FLOOD):
        asyncio.run(steps())
    planned, demanded = job.ended("nsight")
    for event in (planned, demanded):
        assert event.event == "closed" and event.partial and LARGE in event.reason, event
    rows = [row for row in job.harvested(captures)["captures"] if row["rank"] == 1]  # FLOOD's
    assert [row["asked_by"] for row in rows] == ["", asked.id], rows
    for row in rows:
        assert row["state"] == "truncated" and LARGE in row["reason"], row


@takes((PROCESS, SUPERVISOR), ("nsight",), EACH_STEP, EACH_PHASE, SEVERAL, RANKS, OUTPUT_DIR)
@pytest.mark.nsys
@pytest.mark.parametrize(("driver", "each"), [(PROCESS, "step"), (PROCESS, "phase"), (SUPERVISOR, "phase")])
def test_sessions_that_their_process_opens(job: Job, driver: str, each: str) -> None:
    need("nsys")
    steps = STEPS if each == "step" else "3, 6"
    capture = {"workers": "policy", "ranks": [0], "steps": steps, "each": each, "options": {"t": "nvtx"}}
    job.train(driver, [capture])
    job.train(driver, [capture], rank=1)
    ended = job.ended("nsight")
    of_phases = [window for window in OF_PHASES if window[0] != 2]
    assert windows_of(ended) == (OF_STEPS if each == "step" else of_phases)
    assert {Path(event.path).name for event in ended} == job.copied()
    assert not [log for log in job.logs() if log.rank == 1 and log.windows]


@takes((PROCESS, SUPERVISOR), ("nsight",), CAPTURE_RANGE)
@pytest.mark.nsys
@pytest.mark.parametrize(("driver", "each"), [(PROCESS, "phase"), (SUPERVISOR, "step")])
def test_a_capture_range(job: Job, driver: str, each: str) -> None:
    need("nsys")
    capture = {"workers": "policy", "steps": "3, 6", "each": each}
    job.train(driver, [{**capture, "options": {"t": "nvtx", "capture-range": "nvtx"}}])
    [log] = job.logs()
    opened = [(event.start, event.stop, event.phase) for event in log.windows]
    assert opened == ([(3, 4, None), (6, 7, None)] if each == "step" else [w for w in OF_PHASES if w[0] != 2])
    reports = list((job.node_dir / "inplace").rglob("*.nsys-rep"))
    assert len(reports) == len(opened) and not job.copied()
    job.end()
    assert job.copied() == {path.name for path in reports}


@takes((PROCESS,), ("nsight",), PART, COUNTED)
@pytest.mark.nsys
@pytest.mark.parametrize("asked", ASKED_OF_STEPS[:2])
def test_a_part_of_a_step_in_the_process_itself(job: Job, asked: dict[str, str]) -> None:
    need("nsys")
    captures = [{"workers": "policy", "steps": "1:3", "options": {"t": "nvtx"}, **asked}]
    job.train("in_ticks", captures)
    rows = rows_of(job, captures)
    assert [row["state"] for row in rows.values()] == ["ok", "ok"], rows
    for step, row in rows.items():
        counts_from_s = 0.0 if asked == PART_ASKED else 1.0
        assert row["part"] == str(request_from_dict({"captures": captures}).captures[0].part)
        begin_s, end_s = (each + counts_from_s for each in row["taken_s"])
        assert 0.5 <= begin_s < end_s < 5  # half a second early at most
        [report] = [path for path in job.copies.rglob("*.nsys-rep") if f"_step{step}-{step}_" in path.name]
        ticks = [text.split() for text in nvtx_ranges(report, job.node_dir) if text.count(" ") == 2]
        assert ticks and {(tick[0], tick[1]) for tick in ticks} == {(str(step), "generation")}
        seen = sorted(float(tick[2]) for tick in ticks)
        assert seen[0] >= 0.5 and seen[-1] <= end_s + 1.2
        assert any(begin_s <= each <= end_s for each in seen)


@takes((PROCESS, SUPERVISOR), ("torch", "memory"), PART, COUNTED)
@pytest.mark.parametrize(
    ("driver", "asked"),
    [
        ("in_ticks", PART_ASKED),
        ("in_ticks", COUNTED_ASKED[1]),
        ("unmodified_in_ticks", PART_ASKED),
        ("unmodified_in_ticks", COUNTED_ASKED[0]),
    ],
)
def test_a_part_of_a_step_without_nsys(job: Job, driver: str, asked: dict[str, str]) -> None:
    need("torch")
    both = {"workers": "policy", "steps": "1:3", **asked}
    captures = [
        {"backend": "torch", **both},
        {"backend": "memory", "options": {"host": "true"}, **both},
    ]
    job.train(driver, captures)
    for name in ("torch", "memory"):
        ended = job.ended(name)
        assert windows_of(ended) == [(1, 2, None), (2, 3, None)]
        assert {Path(event.path).name for event in ended} <= job.copied()
        for event in ended:
            begin_s, end_s = (each + (asked != PART_ASKED) for each in event.taken_s)
            assert 0.9 <= begin_s < 2.5 and 2.9 <= end_s < 5
            with gzip.open(job.node_dir / event.path, "rt") as report:
                found = json.load(report)
            if name == "memory":
                assert [row["step"] for row in found["steps"]] == [event.start]
                sampled_s = (found["samples"][-1][0] - found["samples"][0][0]) / 1e9
                assert sampled_s == pytest.approx(end_s - begin_s, abs=1.2)
                continue
            names = [row["name"].split() for row in found["traceEvents"] if row.get("ph") == "X"]
            ticks = [each for each in names if len(each) == 3 and each[1] in ("generation", "train")]
            assert {(each[0], each[1]) for each in ticks} == {(str(event.start), "generation")}
            seen = sorted(float(each[2]) for each in ticks)
            assert -0.1 <= seen[0] - begin_s < 1.2 and abs(seen[-1] - end_s) < 1.2


@takes((SUPERVISOR,), ("nsight",), PART, COUNTED)
@pytest.mark.nsys
@pytest.mark.parametrize("asked", [ASKED_OF_STEPS[0], ASKED_OF_STEPS[2]])
def test_a_part_of_a_step_of_an_unmodified_trainer(job: Job, asked: dict[str, str]) -> None:
    need("nsys")
    captures = [{"workers": "rollout", "steps": "2:5", "options": {"t": "nvtx"}, **asked}]
    request = request_from_dict({"captures": captures})
    begun: dict[int, float] = {}
    waited: list[float] = []

    async def steps() -> None:
        windows = Windows(job.node_dir, request, print)
        for step, length_s in ((1, 0.1), (2, 5.0), (3, 0.0), (4, 0.0)):
            before_s = time.monotonic()
            await windows.begin(step)
            waited.append(time.monotonic() - before_s)
            await asyncio.sleep(0.2)
            if step != 4:
                windows.phase(step, "generation")
            begun[step] = time.time()
            for name in ("token 20", "token 30") if length_s > 2 else ():
                await asyncio.sleep(1)
                windows.phase(step, name)
            await asyncio.sleep(length_s)
            windows.end(step)
        await windows.close()

    with running(job.node_dir, TICKS):
        asyncio.run(steps())
    rows = rows_of(job, captures)
    assert [row["state"] for row in rows.values()] == ["ok", "missing", "missing"], rows
    if asked == PART_ASKED:
        assert rows[3]["reason"].endswith("s, before generation+1s")
        assert rows[4]["reason"].endswith("s, and no phase 'generation' began in it")
    else:
        assert f"and nothing told of token 20: they are counted {COUNTS_VLLM}" in rows[3]["reason"]
    begin_s, end_s = (each + (asked != PART_ASKED) for each in rows[2]["taken_s"])
    assert 0.5 <= begin_s < end_s
    [report] = (job.node_dir / "profiles").rglob("*.nsys-rep")
    ticks = [float(text.split()[1]) for text in nvtx_ranges(report, job.node_dir) if text.startswith("at ")]
    seen = [tick - begun[2] for tick in ticks]
    assert min(seen) >= 0.5 and max(seen) <= end_s + 1.2
    assert any(begin_s <= each <= end_s for each in seen)


@takes((TRAINER,), ("nsight",), CAPTURE_RANGE)
@pytest.mark.nsys
def test_a_range_that_the_trainer_opens_itself(job: Job) -> None:
    need("nsys")
    options = {"t": "nvtx", "capture-range": "nvtx", "nvtx-capture": "mine@theirs"}
    job.train(TRAINER, [{"workers": "policy", "steps": "3", "options": options}])
    [report] = (job.node_dir / "inplace").rglob("*.nsys-rep")
    assert "_step3-3_" in report.name and "generation" in nvtx_ranges(report, job.node_dir)
    job.end()
    assert job.copied() == {report.name}


@takes((SUPERVISOR,), ("nsight",), EACH_STEP, SEVERAL, RANKS, OUTPUT_DIR)
@takes((TRAINER,), ("nsight",), EACH_STEP, RANKS, OUTPUT_DIR)
@takes((ON_DEMAND,), ("nsight",), EACH_STEP, RANKS, OUTPUT_DIR)
@pytest.mark.nsys
def test_a_session_whose_windows_come_from_outside(job: Job) -> None:
    """Its supervisor's, the trainer's own, and those of a running job."""
    asked = CaptureSpec(workers=("roll*",), ranks=(1,), steps=Steps.of([Window(2, 4), Window(5, 6)]))
    others = CaptureSpec(workers=("roll*",), ranks=(0,), steps=Steps.of([Window(1, 2)]))
    refused = CaptureRequest("refused", ("*",), None, "auto", {CAPTURE_RANGE: "nvtx"}, None, 0.1)

    async def steps(name: str) -> None:
        windows = Windows(job.node_dir, ProfileRequest((asked, others), output_dir=str(job.copies)), print)
        for step in range(1, 6):
            await windows.begin(step)
            windows.end(step)
        assert await windows.ask(name, "start") and await windows.ask(name, "stop")
        windows.want(demand("next", next_steps=1))
        await windows.begin(6)
        windows.end(6)
        await windows.take_seconds(refused)
        await windows.take_seconds(demand("others", seconds=0.1, workers=("actor",)))
        await windows.close()

    with running(job.node_dir, WORKER):
        [session] = session_file.read_all(job.node_dir)
        asyncio.run(steps(session.name))
    ended = [event for event in job.ended("nsight") if event.event == "closed"]
    [last] = [event for event in job.ended("nsight") if event.event == "failed"]
    assert windows_of(ended) == [(2, 4, None), (5, 6, None), (5, 6, None), (6, 7, None)]
    assert last.reason == support(backends.get("nsight"), ON_DEMAND, CAPTURE_RANGE).refused
    assert {Path(event.path).name for event in ended} == job.copied()


@takes((PROCESS, SUPERVISOR), ("rocprof_sys",), EACH_STEP, EACH_PHASE, SEVERAL, RANKS, OUTPUT_DIR)
@pytest.mark.parametrize(("driver", "each"), [(PROCESS, "step"), (SUPERVISOR, "phase")])
def test_one_trace_of_rocprof_sys_holds_all_windows(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, each: str
) -> None:
    script = rocprof_stand_in.install(tmp_path / "rocm")
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    capture = {"backend": "rocprof_sys", "workers": "policy", "ranks": [0], "steps": STEPS, "each": each}
    job.train(driver, [capture])
    job.train(driver, [capture], rank=1)
    [report] = (job.node_dir / "inplace").rglob("*.proto")
    windows = OF_STEPS if each == "step" else OF_PHASES
    assert len(json.loads(report.read_text())["sections"]) == len(windows)
    assert not job.copied()
    job.end()
    assert job.copied() == {report.name}
    manifest = job.harvested([capture])
    found = {(each["start"], each["stop"], each["phase"]) for each in manifest["captures"]}
    assert found == set(windows)
    assert {(each["state"], each["report"]) for each in manifest["captures"]} == {
        ("ok", f"profiles/rocprof_sys/policy/rank0/{report.name}")
    }


def ask(job: Job, *asked: CaptureRequest, **more: str) -> dict[str, dict[str, Any]]:
    """The events that end what a running process was asked for, by the id of the request."""
    (job.node_dir / "asked").mkdir()
    for each in asked:
        (job.node_dir / "asked" / f"{each.id}.json").write_text(each.to_json())
    planned = {"backend": "memory", "workers": "nobody", "steps": "1", "options": {"host": "true"}}
    job.train(ON_DEMAND, [planned], RLPROF_ON_DEMAND="1", LOADS_TORCH="1", **more)
    rows = [json.loads(line) for path in job.node_dir.glob("events/*.jsonl") for line in path.open()]
    return {row["asked_by"]: row for row in rows if row["event"] in ("closed", "failed")}


@takes((ON_DEMAND,), ("torch",), MAX_MB)
def test_a_running_process_is_asked_for_less_than_it_makes(job: Job) -> None:
    need("torch")
    ended = ask(job, CaptureRequest("large", ("policy",), None, "torch", {MAX_MB: "0.0001"}, None, 0.2))
    assert [(row["event"], "max_mb" in row["reason"]) for row in ended.values()] == [("failed", True)]


@takes((ON_DEMAND,), ("torch", "memory"), EACH_STEP, RANKS, OUTPUT_DIR)
def test_a_running_process_is_asked(job: Job) -> None:
    need("torch")
    asked = [
        CaptureRequest("steps", ("policy",), (0,), "torch", {}, 2, None),
        CaptureRequest("seconds", ("policy",), None, "memory", {"host": "true"}, None, 0.2),
        CaptureRequest("other", ("policy",), (1,), "memory", {"host": "true"}, None, 0.2),
        CaptureRequest("range", ("policy",), None, "torch", {CAPTURE_RANGE: "nvtx"}, 1, None),
        CaptureRequest("amd", ("policy",), None, "rocprof_sys", {}, 1, None),
    ]
    ended = ask(job, *asked)
    assert {name: row["event"] for name, row in ended.items()} == {
        "steps": "closed", "seconds": "closed", "range": "failed", "amd": "failed"
    }  # fmt: skip
    assert {Path(ended[name]["path"]).name for name in ("steps", "seconds")} == job.copied()
    assert ended["range"]["reason"] == support(backends.get("torch"), ON_DEMAND, CAPTURE_RANGE).refused
    assert ended["amd"]["reason"] == support(backends.get("rocprof_sys"), ON_DEMAND, EACH_STEP).refused


@takes((PROCESS, SUPERVISOR), backends.builtin(), RETRY)
@pytest.mark.parametrize("each", ["step", "phase"])
def test_what_is_missing_is_asked_again(job: Job, each: str) -> None:
    captures = [
        {"backend": name, "workers": "policy", "steps": STEPS, "each": each} for name in backends.builtin()
    ]
    phase = "train" if each == "phase" else None
    row = {"worker": "policy", "rank": 0, "pid": 7, "host": "n1", "t_ns": 1, "phase": phase}
    rows = [{**row, "event": "registered"}, {**row, "event": "ended", "last_step": 7}]
    rows += [
        {**row, "event": "failed", "backend": name, "steps": [6, 7], "reason": "no space"}
        for name in backends.builtin()
    ]
    (job.node_dir / "events/policy.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    job.harvested(captures)
    again = missing_request(Manifest.load(job.run), request_from_dict({"captures": captures}))
    assert [(spec.backend, spec.each) for spec in again.captures] == [
        (name, each) for name in backends.builtin()
    ]
    assert all(6 in spec.steps and spec.matches("policy", 0) for spec in again.captures)


def test_every_cell_is_taken_or_refused() -> None:
    cells = set(itertools.product(DRIVERS, backends.builtin(), FEATURES))
    refused = {cell for cell in cells if support(backends.get(cell[1]), cell[0], cell[2]).refused}
    assert taken | refused == cells, sorted(cells - taken - refused)
    assert not taken & refused
