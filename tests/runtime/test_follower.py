"""A process that follows the job's clock, as a child of the process that a session is named after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.needs import need
from tests.runtime.recorders.test_failing_profilers import harvested

from rlprof_ops.collect.event_logs import read_node
from rlprof_ops.job.knobs import python_path
from rlprof_ops.request import request_from_dict

# vLLM's EngineCore is a child of the rollout server: the tasks are its own, the session its parent's.
ENGINE = """
import sys, time
from rlprof_ops.runtime import follower
from rlprof_ops.runtime.clock_file import ClockFile, ClockState

clock = ClockFile(sys.argv[1], write=True)
for step in (1, 2, 3):
    clock.store(ClockState(step, time.time_ns(), True, 0))
    for _ in range(2):
        with follower.task("generation"):
            time.sleep(0.01)
"""


@pytest.mark.parametrize("backend", ["torch", "memory"])
def test_a_child_takes_the_windows_that_are_taken_inside_a_process(tmp_path: Path, backend: str):
    need("torch")
    options = {"options": {"host": True}} if backend == "memory" else {}
    captures = [
        {"backend": "nsight", "workers": ["*"], "steps": "2", "options": {"t": "nvtx"}},
        {"backend": backend, "workers": ["rollout"], "steps": "2", **options},
    ]
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": python_path(None),
        "RLPROF_NODE_DIR": str(tmp_path),
        "RLPROF_WORKER": "rollout",
        "RLPROF_RANK": "1",
        "RLPROF_NSYS_SESSION": "s-1",
        "RLPROF_SESSION_PID": "1:s-1",
        "RLPROF_REQUEST_JSON": request_from_dict({"captures": captures}).to_json(),
    }
    argv = [sys.executable, "-c", ENGINE, str(tmp_path)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    [log] = read_node(tmp_path / "events")
    assert (log.worker, log.rank) == ("rollout", 1)
    assert [(event.event, event.backend, event.start) for event in log.windows] == [
        ("opened", backend, 2),
        ("closed", backend, 2),
    ], done.stderr
    assert (tmp_path / log.windows[-1].path).is_file()


SPAWNED = """
import json, os, socket, sys, threading
from rlprof_ops.runtime import follower, profiler
from rlprof_ops.runtime.clock_file import ClockFile, ClockState

node_dir, told = sys.argv[1], []
if sys.argv[2] == "with a clock":
    ClockFile(node_dir, write=True).store(ClockState(2, 0, True, 0))
    os.chdir(node_dir)
    supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    supervisor.bind("clock.sock")
    supervisor.listen()

    def hear():
        while True:
            link, _ = supervisor.accept()
            told.append(link.recv(4096).decode())
            link.close()

    threading.Thread(target=hear, daemon=True).start()
with follower.task("generation"):
    pass
follows, leads = follower.follow() is not None, [profiler.current().leads]
if follows:
    leads.append(profiler.from_env().leads)
print(json.dumps([told, follows, leads]))
"""


@pytest.mark.parametrize("job", ["with a clock", "without one"])
def test_what_follows_never_leads_and_without_a_clock_is_no_worker(tmp_path: Path, job: str):
    """COMMAND is `rlprof wrap --worker rollout -- …`: the engine that it starts inherits who it is, and
    that it leads. A program that follows first, and then tells its own steps, does lead."""
    need("torch")
    captures = [{"backend": "torch", "workers": ["*"], "steps": "2"}]
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": python_path(None),
        "RLPROF_NODE_DIR": str(tmp_path),
        "RLPROF_WORKER": "rollout",
        "RLPROF_RANK": "0",
        "RLPROF_LEADS": "1",
        "RLPROF_OPEN_WAIT_SECONDS": "1",
        "RLPROF_REQUEST_JSON": request_from_dict({"captures": captures}).to_json(),
    }
    argv = [sys.executable, "-c", SPAWNED, str(tmp_path), job]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with_clock = job == "with a clock"
    assert json.loads(done.stdout) == [[], with_clock, [False, True] if with_clock else [False]], done.stderr
    registered = [(log.worker, log.rank) for log in read_node(tmp_path / "events")]
    assert registered == ([("rollout", 0)] if with_clock else [])


SERVER = """
import subprocess, sys, time
from rlprof_ops.runtime import profiler
from rlprof_ops.runtime.clock_file import ClockFile, ClockState

clock = ClockFile(sys.argv[1], write=True)
rank0 = profiler.from_env()
with rank0.step(2):
    clock.store(ClockState(2, time.time_ns(), True, 0))
    pipe = subprocess.PIPE
    engine = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdin=pipe, stdout=pipe)
    engine.stdout.readline()  # it has registered
    if sys.argv[3] == "in time":
        engine.communicate(b"on", 120)
    clock.store(ClockState(2, time.time_ns(), False, 0))
if sys.argv[3] == "late":
    engine.communicate(b"on", 120)
rank0.close()
"""
# Between its first word and its first task lie seconds on a machine that has no time for it.
LATE_ENGINE = """
import sys
from rlprof_ops.runtime import follower, profiler

follower.follow()
print("registered", flush=True)
sys.stdin.readline()
with follower.task("generation"):
    sum(range(1000))
profiler.current().close()
"""


@pytest.mark.parametrize(("comes", "state", "reports"), [("late", "truncated", 1), ("in time", "ok", 2)])
def test_an_engine_whose_first_task_comes_after_the_window_is_said(
    tmp_path: Path, comes: str, state: str, reports: int
):
    """Its server records the same window and runs no operator. An engine that comes while the step runs takes
    the rest of it at once."""
    need("torch")
    request = {"captures": [{"backend": "torch", "workers": ["rollout"], "steps": "2"}]}
    node_dir = tmp_path / "node"
    node_dir.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": python_path(None),
        "RLPROF_NODE_DIR": str(node_dir),
        "RLPROF_NODE": "n1",
        "RLPROF_WORKER": "rollout",
        "RLPROF_RANK": "0",
        "RLPROF_REQUEST_JSON": request_from_dict(request).to_json(),
    }
    argv = [sys.executable, "-c", SERVER, str(node_dir), LATE_ENGINE, comes]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    [capture] = harvested(node_dir, tmp_path / "4711-logs", request).captures
    assert capture.state == state
    assert 1 + len(capture.more_reports) == reports
    late = "registered while the window was open and recorded nothing of it"
    assert (late in capture.reason) == (state == "truncated"), capture.reason
