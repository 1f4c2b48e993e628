"""The torch backend: options, schedules, folders, and traces with balanced ranges. Real torch.profiler."""

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from rlprof_ops.backends.report_names import report_name
from rlprof_ops.backends.torch.running_profilers import running
from rlprof_ops.backends.torch.torch_options import TorchOptions, parse
from rlprof_ops.backends.torch.torch_recorder import TorchRecorder
from rlprof_ops.runtime import profiler

pytestmark = pytest.mark.torch


def train(prof, steps, work=None):
    import torch

    for step in steps:
        with prof.step(step), prof.range("train"):
            torch.ones(8, 8) @ torch.ones(8, 8)
            if work:
                work(step)
    prof.close()


def load(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def spans(trace):
    """The names of our ranges in a trace, sorted."""
    names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    return sorted(name for name in names if not name.startswith(("PyTorch", "ProfilerStep")))


@pytest.mark.parametrize(
    ("options", "flags", "expected"),
    [
        ({}, (), TorchOptions()),
        (
            {"with_stack": "true"},
            ("record-shapes",),
            TorchOptions(switches={"with_stack": True, "record_shapes": True}),
        ),
        (
            {"schedule_warmup": "2", "schedule_active": "1", "activities": "CPU"},
            (),
            TorchOptions(activities=("cpu",), warmup=2, active=1),
        ),
        (
            {"profile_memory": "yes", "max_mb": "1.5"},
            (),
            TorchOptions(switches={"profile_memory": True}, all_threads=False, max_mb=1.5),
        ),
    ],
)
def test_options_are_words_of_a_request(options, flags, expected):
    assert parse(options, flags) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"with_stak": "true"},
            r"the torch backend has no option 'with_stak': .*\. Did you mean 'with_stack'?",
        ),
        ({"with_flops": "maybe"}, "torch option with_flops is 'maybe': expected true or false"),
        ({"active": "0"}, "torch option active is '0': expected a whole number of steps from 1"),
        ({"activities": "cpu,tpu"}, "torch option activities is 'cpu,tpu': allowed are cpu and cuda"),
        ({"max_mb": "-1"}, "torch option max_mb is '-1': expected a number of megabytes above 0"),
    ],
)
def test_a_wrong_option_is_answered_with_what_is_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        parse(options)


def test_a_wrong_option_fails_the_capture_not_the_training(asked, events):
    asked(backend="torch", options={"with_stak": "true"})

    train(profiler.from_env("policy_worker", 0), range(1, 6))

    (failed,) = events("failed")
    assert "Did you mean 'with_stack'?" in failed["reason"]


def test_switches_reach_the_trace(asked, events):
    node_dir = asked(backend="torch", options={"record_shapes": "true", "with_stack": "true"})

    train(profiler.from_env("policy_worker", 0), range(1, 6))

    trace = load(node_dir / events("closed")[0]["path"])
    assert any("Input Dims" in event.get("args", {}) for event in trace["traceEvents"])
    assert any(event.get("cat") == "python_function" for event in trace["traceEvents"])


def test_nemo_rls_folders(asked, events, monkeypatch, tmp_path):
    asked(backend="torch", workers="*")
    text = json.loads(os.environ["RLPROF_REQUEST_JSON"])
    monkeypatch.setenv("RLPROF_REQUEST_JSON", json.dumps({**text, "output_dir": str(tmp_path / "traces")}))

    for worker, rank in (
        ("controller", 0),
        ("driver", 0),
        ("dtensor_policy_worker", 1),
        ("vllm_generation_worker", 0),
    ):
        train(profiler.from_env(worker, rank), range(1, 6))

    pid = os.getpid()
    found = sorted(
        path.relative_to(tmp_path / "traces").as_posix() for path in (tmp_path / "traces").rglob("*.gz")
    )
    assert found == [
        f"controller_rank0_step3-4_n1_{pid}.pt.trace.json.gz",
        f"driver_rank0_step3-4_n1_{pid}.pt.trace.json.gz",
        f"dtensor_policy_worker/1/dtensor_policy_worker_rank1_step3-4_n1_{pid}.pt.trace.json.gz",
        f"vllm_generation_worker/vllm_generation_worker_rank0_step3-4_n1_{pid}.pt.trace.json.gz",
    ]
    assert len(events("closed")) == 4


def test_a_schedule_takes_its_active_steps_in_files_of_their_own(asked, events):
    node_dir = asked(
        backend="torch", steps="3:11", options={"wait": "1", "warmup": "1", "active": "2", "repeat": "2"}
    )

    train(profiler.from_env("policy_worker", 0), range(1, 13))

    closed = events("closed")
    assert [event["steps"] for event in closed] == [[3, 11], [9, 11]]
    assert closed[1]["report"].startswith("policy_worker_rank0_step9-10_n1_")
    assert [spans(load(node_dir / event["path"])) for event in closed] == [
        ["step 5", "step 6", "train", "train"],
        ["step 10", "step 9", "train", "train"],
    ]


def test_a_schedule_longer_than_its_window_is_told_with_numbers(asked, events):
    asked(backend="torch", steps="3:5", options={"wait": "4", "active": "1"})

    train(profiler.from_env("policy_worker", 0), range(1, 7))

    (failed,) = events("failed")
    assert (
        failed["reason"]
        == "the schedule wait=4 warmup=0 active=1 ended before its first active step: the window had 2 steps"
    )


def test_a_trace_tells_its_gpus_which_torch_does_not(asked, monkeypatch):
    """A CUDA that is in use, and two GPUs of it; the trace is torch's own, and our reader's."""
    torch = pytest.importorskip("torch")
    read = pytest.importorskip("rlprof_ops.analyze.readers.torch_trace").read_torch
    node_dir, uuids = asked(backend="torch", steps="3"), ["554a6988-03dd", "c8f71ebb-eb60"]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(uuid=uuids[i]))

    train(profiler.from_env("policy_worker", 0), range(1, 6))

    (path,) = node_dir.rglob("*.pt.trace.json.gz")
    assert read(path).origin.gpus == tuple((os.getpid(), i, uuid) for i, uuid in enumerate(uuids))


def test_a_trace_over_the_limit_is_dropped(asked, events):
    node_dir = asked(backend="torch", options={"max_mb": "0.0001"})

    train(profiler.from_env("policy_worker", 0), range(1, 6))

    (failed,) = events("failed")
    assert "max_mb is 0.0001" in failed["reason"]
    assert list((node_dir / "tmp").iterdir()) == []


def test_a_window_is_measured_by_one_of_the_same_options_and_phase(tmp_path, monkeypatch):
    monkeypatch.setattr(TorchRecorder, "_bytes_per_s", {})

    def is_bound(phase=None, **options):
        name = report_name("w", 0, SimpleNamespace(start=1, stop=2), phase, "n1", 1, TorchRecorder.suffix)
        recorder = TorchRecorder(SimpleNamespace(options=options, flags=()))
        recorder.open(tmp_path / name)
        found = recorder.most_bytes > 0
        recorder.close()
        return found

    assert [is_bound(), is_bound(with_stack="true"), is_bound("train"), is_bound("generation")] == [False] * 4
    assert [is_bound(max_mb="5"), is_bound(with_stack="true"), is_bound("train")] == [True] * 3
    assert TorchRecorder.size_by == " (by the speed of the window before)"


def test_ranges_are_balanced_with_nested_async_failing_and_threads(asked, events):
    import torch

    node_dir = asked(backend="torch", steps="3")
    prof = profiler.from_env("policy_worker", 0)

    @prof.annotate("reply")
    async def reply(seconds):
        await asyncio.sleep(seconds)
        torch.ones(2)

    @prof.annotate("failing")
    def failing():
        raise ValueError

    async def replies():
        await asyncio.gather(reply(0.02), reply(0.01), reply(0.0))

    def in_thread():
        with prof.range("thread"):
            torch.ones(2)

    with prof.step(3):
        with prof.range("generation"), prof.range("inner"):
            asyncio.run(replies())
        with pytest.raises(ValueError):
            failing()
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
    prof.close()

    trace = load(node_dir / events("closed")[0]["path"])
    assert spans(trace) == ["failing", "generation", "inner", "reply", "reply", "reply", "step 3", "thread"]
    assert all(event["ph"] == "X" for event in trace["traceEvents"] if event.get("cat") == "user_annotation")


def test_another_thread_may_close_the_window(asked, events):
    node_dir = asked(backend="torch", steps="3:6")
    prof = profiler.from_env("policy_worker", 0)
    prof.start_step(3)

    thread = threading.Thread(target=prof.close)
    thread.start()
    thread.join(timeout=30)

    (closed,) = events("closed")
    assert closed["partial"] is True and (node_dir / closed["path"]).is_file()


# On one core, so that the thread is often interrupted in an operator.
BESIDE_A_THREAD = """
import os, sys, threading, time, torch
from pathlib import Path
from rlprof_ops.backends import get
from rlprof_ops.request import CaptureSpec
spec = CaptureSpec(backend="torch", workers=("w",), options=eval(sys.argv[2]))
recorder, _ = get("torch").recorder(spec, [spec])

def compute():
    global ticks
    with torch.profiler.record_function("tick"):
        x = torch.ones(8, 8, requires_grad=True)
        (x @ x).relu().sum().backward()
    ticks += 1

def beside():
    while not over.is_set():
        compute()

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
over, ticks = threading.Event(), 0
thread = threading.Thread(target=beside)
thread.start()
for window in range(100):
    recorder.open(Path(sys.argv[1], f"{window % 2}.pt.trace.json.gz"))
    recorder.entered(2 * window)
    time.sleep(0.01)
    least, until = ticks + 9, time.monotonic() + 60
    while window == 99 and ticks < least and time.monotonic() < until:  # the one whose report is read
        time.sleep(0.01)
    recorder.entered(2 * window + 1)
    recorder.close()
over.set()
thread.join()
print("trained", flush=True)
"""


@pytest.mark.parametrize("options", [{}, {"active": "1"}], ids=["window", "schedule"])
def test_a_thread_that_computes_beside_a_window_is_not_harmed_by_its_end(tmp_path, options):
    """It was ended by SIGABRT or SIGSEGV within a hundred windows."""
    command = [sys.executable, "-c", BESIDE_A_THREAD, str(tmp_path), repr(options)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert (done.returncode, "trained" in done.stdout) == (0, True), done.stderr[-2000:]
    assert spans(load(tmp_path / "1.pt.trace.json.gz")).count("tick") > 2


def test_where_another_thread_would_crash_torch_it_is_not_asked(asked, events):
    asked(backend="torch", steps="3:6", options={"all_threads": "false"})
    prof = profiler.from_env("policy_worker", 0)
    prof.start_step(3)

    thread = threading.Thread(target=prof.close)
    thread.start()
    thread.join(timeout=30)

    (failed,) = events("failed")
    assert "can only be stopped by the thread that started it" in failed["reason"]
    running.settle()  # for the tests after this one
