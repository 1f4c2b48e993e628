"""Windows opened and closed from outside, with real nsys: a process that knows no step, and its child."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.needs import need
from tests.nsys_stand_in import answering_nsys
from tests.waits import wait_until

from rlprof_ops.backends.nsight import nsys_cli, nsys_options
from rlprof_ops.backends.nsight.nsys_wrap import NsysCommand
from rlprof_ops.backends.nsight.session_recorder import NsysSessionRecorder
from rlprof_ops.collect.event_logs import WindowEvent, read_node
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps, Window
from rlprof_ops.request.check import check_request
from rlprof_ops.runtime.clock_file import ClockFile, ClockState
from rlprof_ops.runtime.on_demand.watcher import CaptureRequest
from rlprof_ops.runtime.process import session_file
from rlprof_ops.supervisor.steps.session_windows import Windows

# A child process of the worker does the work, as vLLM's EngineCore does: it is inside the session too.
WORKER = """
import multiprocessing, os, time, nvtx
from rlprof_ops.runtime.process import session_file

def engine():
    worker = os.getppid()
    while os.getppid() == worker:  # a worker that is killed ends nobody
        with nvtx.annotate("execute_model"):
            time.sleep(0.02)

if __name__ == "__main__":
    session_file.register()
    multiprocessing.get_context("spawn").Process(target=engine, daemon=True).start()
    time.sleep(120)
"""


def demand(
    name: str,
    workers: tuple[str, ...] = ("*",),
    next_steps: int | None = None,
    seconds: float | None = None,
) -> CaptureRequest:
    """A capture on demand of every rank."""
    return CaptureRequest(name, workers, None, "auto", {}, next_steps, seconds)


@pytest.fixture
def node_dir(tmp_path: Path) -> Path:
    for name in ("tmp", "events", "profiles"):
        (tmp_path / name).mkdir()
    return tmp_path


def launch(
    node_dir: Path, session: str, program: str = WORKER, asked: ProfileRequest | None = None
) -> subprocess.Popen[bytes]:
    script = node_dir / "worker.py"
    script.write_text(program)
    env = {
        **os.environ,
        "TMPDIR": str(node_dir / "tmp"),
        "RLPROF_NODE_DIR": str(node_dir),
        "RLPROF_NODE": "n1",
        "RLPROF_WORKER": "rollout",
        "RLPROF_RANK": "1",
        **({"RLPROF_REQUEST_JSON": asked.to_json()} if asked else {}),
    }
    spec = CaptureSpec(workers=("*",), options={"t": "nvtx"})
    options = tuple(nsys_options.split_options(spec).launch)
    command = NsysCommand("launch", "nsys", options, session=session).words()
    return subprocess.Popen([*command, sys.executable, str(script)], env=env, start_new_session=True)


def names_of(report: Path) -> set[str]:
    import sqlite3

    out = report.with_suffix(".sqlite")
    subprocess.run(
        ["nsys", "export", "--type", "sqlite", "-o", str(out), str(report)], check=True, capture_output=True
    )
    rows = sqlite3.connect(out).execute(
        "select coalesce(e.text, s.value) from NVTX_EVENTS e left join StringIds s on s.id = e.textId"
    )
    return {row[0] for row in rows}


@pytest.fixture
def rollout(node_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in its session, with its engine at work."""
    with running(node_dir, WORKER) as worker:
        time.sleep(2)  # the child begins
        yield worker


@contextlib.contextmanager
def running(
    node_dir: Path, program: str, asked: ProfileRequest | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program under `nsys launch`, once it has left its session file."""
    need("nsys")
    worker = launch(node_dir, f"rlprof-test-rollout-r1-{os.getpid()}-", program, asked)
    try:
        wait_until(
            lambda: session_file.read_all(node_dir), seconds=120, unless=lambda: worker.poll() is not None
        )
        yield worker
    finally:
        env = {**os.environ, "TMPDIR": str(node_dir / "tmp")}
        for known in (node_dir / session_file.FOLDER).glob("*.json"):  # of a worker that was killed too
            shutdown = ["nsys", "shutdown", "--kill=sigkill", f"--session={known.stem}"]
            subprocess.run(shutdown, env=env, check=False, capture_output=True, timeout=60)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


REQUEST = ProfileRequest((CaptureSpec(workers=("roll*",), steps=Steps.of([Window(2, 4)])),))


@pytest.mark.nsys
def test_a_window_of_steps_of_a_process_that_knows_none(node_dir: Path, rollout: subprocess.Popen[bytes]):
    async def steps() -> None:
        said: list[str] = []
        windows = Windows(node_dir, REQUEST, said.append)
        for step in (1, 2, 3, 4):
            await windows.begin(step)
            await asyncio.sleep(0.3)
            windows.end(step)
        windows.want(demand("next-steps", next_steps=1))
        await windows.begin(5)
        await asyncio.sleep(0.3)
        windows.end(5)
        await windows.take_seconds(demand("seconds", seconds=0.5))
        await windows.take_seconds(demand("others", seconds=0.5, workers=("actor",)))
        await windows.close()
        assert not said

    asyncio.run(steps())
    [log] = read_node(node_dir / "events")
    assert (log.worker, log.rank, log.host, log.last_step, log.ended) == ("rollout", 1, "n1", 5, True)
    assert [(event.event, event.start, event.stop) for event in log.windows] == [
        ("opened", 2, 4),
        ("closed", 2, 4),
        ("opened", 5, 6),
        ("closed", 5, 6),
        ("opened", 5, None),
        ("closed", 5, 6),
    ]
    reports = [node_dir / event.path for event in log.windows[1::2]]
    assert len(set(reports)) == 3 and all(nsys_cli.check(report).state == "ok" for report in reports)
    assert rollout.poll() is None
    assert "_step2-3_n1_" in reports[0].name and not log.windows[1].partial
    assert "execute_model" in names_of(reports[0])


@pytest.mark.nsys
def test_a_report_comes_to_the_output_dir_of_the_request_too(
    node_dir: Path, rollout: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir("/")  # as a supervisor, which leaves storage that may hang

    async def steps() -> None:
        windows = Windows(node_dir, replace(REQUEST, output_dir="out"), print, node_dir / "job")
        for step in (2, 3):
            await windows.begin(step)
            windows.end(step)
        await windows.close()

    asyncio.run(steps())
    [_, closed] = read_node(node_dir / "events")[0].windows
    copy = node_dir / "job/out/nsight/rollout/rank1" / Path(closed.path).name
    assert nsys_cli.check(copy).state == "ok" and nsys_cli.check(node_dir / closed.path).state == "ok"
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


@pytest.mark.nsys
@pytest.mark.parametrize("killed_in", [2, 3])
def test_a_worker_that_is_killed_in_its_window_leaves_what_was_recorded(
    node_dir: Path, rollout: subprocess.Popen[bytes], killed_in: int
):
    [session] = session_file.read_all(node_dir)

    async def steps() -> None:
        windows = Windows(node_dir, REQUEST, print)
        for step in (2, 3):
            await windows.begin(step)
            await asyncio.sleep(0.5)
            if step == killed_in:
                os.kill(session.pid, signal.SIGKILL)
                await asyncio.sleep(3)
            windows.end(step)
        await windows.close()

    asyncio.run(steps())
    [log] = read_node(node_dir / "events")
    assert [event.event for event in log.windows] == ["opened", "closed"], log
    assert log.windows[1].partial  # its engine went on
    assert nsys_cli.check(node_dir / log.windows[1].path).state == "ok"


TWICE = ProfileRequest(
    (CaptureSpec(workers=("roll*",), steps=Steps.of([Window(2, 4), Window(6, 7), Window(9, 10)])),)
)


@pytest.mark.nsys
@pytest.mark.parametrize("stopping", [False, True], ids=["open", "being closed"])
def test_a_window_of_a_supervisor_that_was_killed_is_gone_on_with(
    node_dir: Path, rollout: subprocess.Popen[bytes], stopping: bool
):
    async def first() -> None:
        windows = Windows(node_dir, TWICE, print)
        for step in (1, 2):
            await windows.begin(step)
        if stopping:  # as a supervisor that is killed while its `nsys stop` writes
            [session] = session_file.read_all(node_dir)
            env = {**os.environ, "TMPDIR": session.tmpdir}
            subprocess.Popen(nsys_cli.stop_argv(session.name), env=env, start_new_session=True)

    async def second() -> None:
        said: list[str] = []
        windows = Windows(node_dir, TWICE, said.append)
        await windows.resume(2, running=True)
        await asyncio.sleep(0.3)
        for step in (8, 9):  # of steps 3 to 7 nobody heard
            await windows.begin(step)
            await asyncio.sleep(0.3)
            windows.end(step)
        await windows.close()
        assert len(said) == 1 and "no supervisor heard its steps" in said[0], said

    asyncio.run(first())
    asyncio.run(second())
    [log] = read_node(node_dir / "events")
    found = {(event.start, event.event): event for event in log.windows}
    assert set(found) == {(2, "opened"), (2, "closed"), (6, "failed"), (9, "opened"), (9, "closed")}
    for start in (2, 9):
        closed = found[start, "closed"]
        assert not closed.partial and nsys_cli.check(node_dir / closed.path).state == "ok"
    if not stopping:
        assert "execute_model" in names_of(node_dir / found[2, "closed"].path)
    assert "took over" in found[6, "failed"].reason


def test_one_on_demand_keeps_its_bound_when_its_supervisor_was_killed(
    node_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    claim_session(node_dir, monkeypatch, stop="report")
    asked = replace(demand("large", next_steps=8), options={"max_mb": "40"})

    async def first() -> None:
        windows = Windows(node_dir, ProfileRequest(), print)
        windows.want(asked)
        await windows.begin(1)
        for watched in windows._watched.values():
            watched.captures._all[0].gate.drop()  # as one that was killed

    async def second() -> None:
        windows = Windows(node_dir, ProfileRequest(), print)
        monkeypatch.setattr(NsysSessionRecorder, "size_bytes", lambda _: 41_000_000)
        await windows.resume(1, running=True)
        await asyncio.to_thread(wait_until, lambda: len(read_node(node_dir / "events")[0].windows) == 2)
        await windows.close()

    asyncio.run(first())
    asyncio.run(second())
    [_, closed] = read_node(node_dir / "events")[0].windows
    assert closed.partial and "stays within max_mb" in closed.reason, closed


@pytest.mark.nsys
def test_one_that_should_be_open_is_opened_late_and_says_so(node_dir: Path, rollout: subprocess.Popen[bytes]):
    async def steps() -> None:
        windows = Windows(node_dir, REQUEST, print)
        await windows.resume(2, running=True)
        await asyncio.sleep(0.3)
        windows.end(2)
        await windows.begin(3)
        windows.end(3)
        await windows.close()

    asyncio.run(steps())
    [log] = read_node(node_dir / "events")
    assert [(event.event, event.partial) for event in log.windows] == [("opened", False), ("closed", True)]


def test_what_was_said_of_a_slow_close_is_in_the_manifest(node_dir: Path, monkeypatch: pytest.MonkeyPatch):
    """A session that goes on to collect for longer than training waits: the same word as in the process."""
    claim_session(node_dir, monkeypatch, stop="sleep 1; report")
    monkeypatch.setenv("RLPROF_CLOSE_WAIT_SECONDS", "0.3")

    async def steps() -> None:
        windows = Windows(node_dir, REQUEST, print)
        await windows.begin(2)
        windows.end(3)
        await windows.close()

    asyncio.run(steps())
    [_, closed] = read_node(node_dir / "events")[0].windows
    assert closed.event == "closed" and "later work may be in the report" in closed.reason, closed


def claim_session(node_dir: Path, monkeypatch: pytest.MonkeyPatch, **nsys: str) -> None:
    """This process as the owner of a session, with an nsys that only answers."""
    monkeypatch.setenv("RLPROF_NSYS", str(answering_nsys(node_dir / "bin", session="rlprof-test", **nsys)))
    monkeypatch.setenv("RLPROF_NSYS_SESSION", "rlprof-test")
    monkeypatch.setenv("RLPROF_NODE_DIR", str(node_dir))
    monkeypatch.delenv("RLPROF_SESSION_PID", raising=False)
    session_file.register("rollout", 1)


def test_a_trainer_that_stops_what_is_still_being_opened(node_dir: Path, monkeypatch: pytest.MonkeyPatch):
    claim_session(node_dir, monkeypatch, start='sleep 1; state Collection; echo "$4" > "$0.report"')

    async def calls() -> None:
        windows = Windows(node_dir, ProfileRequest(), print)
        start = asyncio.create_task(windows.ask("rlprof-test", "start"))
        await asyncio.sleep(0.3)
        assert await windows.ask("rlprof-test", "stop") and await start
        await windows.close()
        assert await windows.ask("rlprof-test", "stop") and not await windows.ask("rlprof-test", "start")
        windows.end(1)

    asyncio.run(calls())
    assert [event.event for event in read_node(node_dir / "events")[0].windows] == ["opened", "closed"]


def test_a_window_on_demand_beside_another_is_refused_as_in_a_process(
    node_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    claim_session(node_dir, monkeypatch)

    async def steps() -> None:
        windows = Windows(node_dir, REQUEST, print)
        await windows.begin(2)
        windows.end(2)
        windows.want(demand("now", next_steps=1))
        await windows.begin(3)
        windows.end(3)
        await windows.close()

    asyncio.run(steps())
    found = [(each.event, each.start, each.reason) for each in read_node(node_dir / "events")[0].windows]
    assert sorted(found) == [
        ("closed", 2, ""),
        ("failed", 3, "another nsight window is open in this process"),
        ("opened", 2, ""),
    ], found


STARTED = 'printf "%s\\n" "$@" > "$0.words"; state Collection; echo "$4" > "$0.report"'


def test_a_capture_that_takes_itself_has_its_flags(node_dir: Path, monkeypatch: pytest.MonkeyPatch):
    claim_session(node_dir, monkeypatch, start=STARTED)

    async def steps() -> None:
        windows = Windows(node_dir, ProfileRequest(), print)
        windows.want(replace(demand("when-every-step2-1", next_steps=1), flags=("stats",)))
        await windows.begin(3)
        windows.end(3)
        await windows.close()

    asyncio.run(steps())
    assert "--stats" in (node_dir / "bin/nsys.words").read_text().splitlines()


def test_a_window_of_a_trainers_calls_has_the_options_of_its_key(
    node_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    theirs = {"sample": "process-tree", "backtrace": "fp $(touch x); 'y", "trace": "cuda", "stats": None}
    monkeypatch.setenv("RLPROF_SESSION_OPTIONS", json.dumps(theirs))
    claim_session(node_dir, monkeypatch, start=STARTED)

    async def calls() -> None:
        windows = Windows(node_dir, ProfileRequest(), print)
        assert await windows.ask("rlprof-test", "start") and await windows.ask("rlprof-test", "stop")
        await windows.close()

    asyncio.run(calls())
    words = (node_dir / "bin/nsys.words").read_text().splitlines()
    assert {"--sample=process-tree", "--backtrace=fp $(touch x); 'y", "--stats"} <= set(words)
    assert "--cpuctxsw=none" in words and not {"--sample=none", "--trace=cuda"} & set(words)


@pytest.mark.parametrize("text", ["[", "[]", '{"sample": 3}'])
def test_options_that_are_none_leave_the_session_its_windows(
    node_dir: Path, monkeypatch: pytest.MonkeyPatch, text: str
):
    monkeypatch.setenv("RLPROF_SESSION_OPTIONS", text)
    claim_session(node_dir, monkeypatch)
    [session] = session_file.read_all(node_dir)
    assert session.options == {}


# What an adapter does in an actor of an unmodified trainer: each call of the driver's is a task.
TASKS = """
import time
from rlprof_ops.runtime import follower
from rlprof_ops.runtime.process import session_file

session_file.register()
while True:
    for name in ("generate", "update_actor"):
        with follower.task(name):
            time.sleep(0.1)
"""
EACH_PHASE = ProfileRequest(
    (CaptureSpec(workers=("roll*",), steps=Steps.of([Window(2, 3)]), each="phase", options={"t": "nvtx"}),)
)


@pytest.mark.nsys
def test_the_tasks_of_an_unmodified_trainer_are_windows_of_phases(node_dir: Path):
    clock = ClockFile(node_dir, write=True)

    def opened() -> bool:
        logs = read_node(node_dir / "events")
        return sum(event.event == "opened" for log in logs for event in log.windows) == 2

    async def steps() -> None:
        windows = Windows(node_dir, EACH_PHASE, print)
        for step in (1, 2, 3):
            clock.store(ClockState(step, time.time_ns(), True))
            await windows.begin(step)
            if step == 2:
                await asyncio.to_thread(wait_until, opened, seconds=60)
                [session] = session_file.read_all(node_dir)
                assert await windows.ask(session.name, "start")  # a profiler call of its trainer's
                assert await windows.ask(session.name, "stop")
            windows.end(step)
        await windows.close()

    with running(node_dir, TASKS, EACH_PHASE):
        asyncio.run(steps())

        def closed() -> list[WindowEvent]:
            logs = read_node(node_dir / "events")
            return [event for log in logs for event in log.windows if event.event != "opened"]

        wait_until(lambda: len(closed()) == 2, seconds=60)
    # The actor is in either task when the step begins: which is the first is its own affair.
    assert sorted((each.event, each.start, each.phase) for each in closed()) == [
        ("closed", 2, "generate"),
        ("closed", 2, "update_actor"),
    ], closed()
    for each in closed():
        assert each.phase in names_of(node_dir / each.path)


# A server whose engine, a child, marks the tasks: vLLM's workers do, below verl's servers.
TASKS_OF_A_CHILD = """
import multiprocessing, os, time
from rlprof_ops.runtime import follower
from rlprof_ops.runtime.process import session_file

def engine():
    worker = os.getppid()
    while os.getppid() == worker:
        with follower.task("generation"):
            time.sleep(0.02)

if __name__ == "__main__":
    session_file.register()
    multiprocessing.get_context("spawn").Process(target=engine, daemon=True).start()
    time.sleep(120)
"""


@pytest.mark.nsys
@pytest.mark.parametrize("program", [WORKER, TASKS_OF_A_CHILD], ids=["no tasks", "tasks of a child"])
def test_a_process_that_tells_no_phases_has_no_window_of_one_and_the_manifest_says_why(
    node_dir: Path, program: str
):
    clock = ClockFile(node_dir, write=True)

    async def steps() -> None:
        windows = Windows(node_dir, EACH_PHASE, print)
        for step in (1, 2, 3):
            clock.store(ClockState(step, time.time_ns(), True))
            await windows.begin(step)
            await asyncio.sleep(1)
            windows.end(step)
        await windows.close()

    with running(node_dir, program, EACH_PHASE):
        time.sleep(2)  # the child begins
        asyncio.run(steps())
    [failed] = [event for log in read_node(node_dir / "events") for event in log.windows]
    [warning] = check_request(EACH_PHASE)
    assert (failed.event, failed.start, failed.stop) == ("failed", 2, 3)
    assert "its own process has to tell its phases" in failed.reason and failed.reason in warning
