"""`rlprof capture` and `rlprof stacks` against a run folder: a real training process answers, no Ray."""

import json
import os
import pty
import re
import subprocess
import sys
import time

import pytest

from rlprof_ops.cli import main
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.operate import capture_request
from rlprof_ops.runtime.on_demand import watcher
from rlprof_ops.supervisor import capture_relay

TRAINING = """
import sys, time
from rlprof_ops.runtime import profiler
from rlprof_ops.runtime.on_demand import watcher
watcher.POLL_S = 0.05
prof = profiler.from_env(worker="policy_worker", rank=0)
print("ready", flush=True)
step = 0
while step < 30_000:
    step += 1
    with prof.step(step), prof.range("train"):
        time.sleep(0.01)
"""


@pytest.fixture
def run(tmp_path):
    """A run folder with one live worker whose `nodes/n1` is its node folder's copy; ends it afterwards."""
    run = tmp_path / "4711-logs"
    (run / "nodes").mkdir(parents=True)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RLPROF_ON_DEMAND": "1",
        "RLPROF_NODE": "n1",
        "RLPROF_RUN_DIR": str(run),
    }
    for name in [
        name for name in env if name in ("RLPROF_NODE_DIR", "RLPROF_REQUEST_JSON", "RLPROF_NSYS_SESSION")
    ]:
        del env[name]
    process = subprocess.Popen([sys.executable, "-c", TRAINING], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield run
    process.kill()
    process.wait(timeout=60)


def ask(run, **changes):
    values = {
        "workers": ("*policy*",),
        "ranks": None,
        "backend": "memory",
        "steps": None,
        "seconds": None,
        "options": {"host": "true"},
        "timeout_s": 90.0,
    }
    return capture_request.capture(run, progress=lambda *_: None, **{**values, **changes})


def test_windows_of_a_running_job_by_steps_and_by_seconds(run):
    (first,) = ask(run, steps="next:2")
    (second,) = ask(run, seconds=2.0)

    assert first.path.is_file() and second.path.is_file() and first.path != second.path
    assert first.path.parent == run / "profiles/memory/policy_worker/rank0"
    rows = [
        json.loads(line)
        for path in run.glob("nodes/n1/events/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    closed = [row for row in rows if row["event"] == "closed"]
    assert closed[0]["steps"][1] - closed[0]["steps"][0] == 2 and len(closed[1]["seen"]) > 5


def test_the_command_says_where_the_report_is(run, capsys):
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "capture",
                str(run),
                "--workers",
                "policy_worker",
                "--ranks",
                "0",
                "--steps",
                "next:1",
                "--backend",
                "memory",
                "--option",
                "host=true",
            ]
        )

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"policy_worker rank 0 on n1: {run}/profiles/memory/")


def test_a_person_who_waits_sees_a_bar(run):
    """On a real terminal: the line is drawn while the window is open, and full at the end."""
    argv = [
        sys.executable,
        "-m",
        "rlprof_ops",
        "capture",
        str(run),
        "--workers",
        "policy_worker",
        "--seconds",
        "2.5",
        "--backend",
        "memory",
        "--option",
        "host=true",
    ]
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"},
    )
    os.close(terminal)
    try:
        out, _ = process.communicate(timeout=200)
        drawn = os.read(master, 1 << 16).decode()
    finally:
        process.kill()
        os.close(master)

    assert process.returncode == 0, drawn
    assert re.search(r"reports +\[-+\] +0/1 +[1-9]\d* s so far", drawn), drawn
    assert "1/1" in drawn
    assert out.startswith(b"policy_worker rank 0 on n1: ")


def test_why_a_capture_failed_is_said(run, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["capture", str(run), "--workers", "policy_worker", "--steps", "next:1", "--backend", "nsight"])

    assert ended.value.code == 3
    assert (
        "policy_worker rank 0 on n1: missing: this process was not started by `nsys launch`"
        in capsys.readouterr().out
    )


def test_a_worker_that_does_not_exist_is_answered_with_those_that_do(run):
    with pytest.raises(
        UsageError, match=r"no running worker matches reward rank 1: there are policy_worker rank 0"
    ):
        ask(run, workers=("reward",), ranks=(1,), steps="next:1")


def test_a_job_that_has_ended_says_so(run):
    record = {"job": "4711", "driver": {"ended_ns": 5, "exit_code": 7}, "end": {"cause": "driver_exit"}}
    (run / "run.json").write_text(json.dumps(record))

    with pytest.raises(
        RlprofError, match=r"job 4711 has ended \(driver_exit, exit code 7\): there is nothing to capture"
    ):
        ask(run, steps="next:1")


def test_a_job_without_workers_yet_says_so(tmp_path):
    with pytest.raises(RlprofError, match="has registered yet"):
        ask(tmp_path, steps="next:1")


@pytest.mark.parametrize("text", ["2", "next:0", "next:", "3:5"])
def test_only_the_next_steps_can_be_asked(text):
    with pytest.raises(UsageError, match="expected next:N"):
        capture_request.parse_next(text)


def test_a_worker_that_does_not_listen_is_named(run):
    (path,) = run.glob("nodes/n1/events/*.jsonl")
    path.write_text(path.read_text().replace('"on_demand": true', '"on_demand": false'))

    with pytest.raises(
        RlprofError, match=r"policy_worker rank 0 do not listen: the job was started with RLPROF_ON_DEMAND=0"
    ):
        ask(run, steps="next:1")


def test_nobody_waits_for_a_node_that_is_lost(run):
    (path,) = run.glob("nodes/n1/events/*.jsonl")
    others = run / "nodes/n2/events/policy_worker_rank1_n2_77.jsonl"
    others.parent.mkdir(parents=True)
    text = path.read_text().splitlines()[0]
    others.write_text(json.dumps({**json.loads(text), "rank": 1, "pid": 77, "host": "n2"}) + "\n")
    (run / "run.json").write_text('{"end": {"cause": "running", "lost_nodes": ["n2"]}, "driver": {}}')

    began = time.monotonic()
    found = {answer.worker.rank: answer for answer in ask(run, steps="next:1", timeout_s=100.0)}
    assert time.monotonic() - began < 60
    assert found[0].path.is_file()
    assert (found[1].path, found[1].reason) == (None, "node n2 was lost")


def test_stacks_of_a_worker_on_this_machine(run, monkeypatch):
    monkeypatch.setenv("RLPROF_NODE", "n1")
    if capture_relay._py_spy() is None:
        pytest.skip("no py-spy")

    ((worker, text),) = capture_request.stacks(run, ("*",), None, timeout_s=60)

    assert worker.name == "policy_worker rank 0"
    assert '"MainThread"' in text or "MainThread" in text


@pytest.mark.parametrize("code", [0, 1])
def test_stacks_have_no_secret_of_a_command_line(tmp_path, monkeypatch, code):
    """Py-spy begins with the process's whole command line."""
    py_spy = tmp_path / "py-spy"
    shown = "Process 7: python train.py --wandb-key q7Zk1Vw9Xr2Lm4Tp --steps 3"
    py_spy.write_text(f"#!/bin/sh\necho '{shown}'\necho '    step (train.py:12)'\nexit {code}\n")
    py_spy.chmod(0o755)
    monkeypatch.setattr(capture_relay, "_py_spy", lambda: str(py_spy))

    text = capture_relay.stacks_of(7)

    assert "--wandb-key *** --steps 3" in text and "step (train.py:12)" in text


def test_stacks_of_another_node_are_taken_there(run, monkeypatch):
    """This machine plays both sides: the command's node is another one, the node's supervisor serves `n1`."""
    import asyncio
    import threading

    monkeypatch.setenv("RLPROF_NODE", "login")
    monkeypatch.setattr(capture_relay, "stacks_of", lambda pid: f"stack of {pid}")
    monkeypatch.setattr(capture_relay, "LOOK_S", 0.05)
    stop, looked = threading.Event(), threading.Event()
    new_requests = watcher.new_requests

    def look(*where):
        looked.set()
        return new_requests(*where)

    monkeypatch.setattr(watcher, "new_requests", look)

    async def node():
        async def tell(asked):
            await capture_relay.take(asked, run, run / "nodes/n1", "n1", lambda _: None)

        task = asyncio.create_task(capture_relay.watch(run, tell))
        while not stop.is_set():
            await asyncio.sleep(0.05)
        task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(node()))
    thread.start()
    try:
        assert looked.wait(60)  # what was asked before is not for it
        ((worker, text),) = capture_request.stacks(run, ("policy_worker",), (0,), timeout_s=60)
    finally:
        stop.set()
        thread.join(timeout=60)

    assert text == f"stack of {worker.pid}"
    assert list((run / "nodes" / "n1" / "control").glob("*.json")) == []  # no worker takes it for a capture
    assert '"failed"' not in worker.events.read_text()
