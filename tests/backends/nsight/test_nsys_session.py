"""Real nsys: windows of a wrapped process end as reports that hold exactly the ranges of their steps."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.real_nsys import nvtx_ranges, nvtx_sum
from tests.waits import wait_until

from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.backends.nsight.nsys_wrap import NsysCommand
from rlprof_ops.backends.option_trial import BAD_LUCK
from rlprof_ops.request import request_from_dict

pytestmark = pytest.mark.nsys

TRAINING = """
import asyncio, sys, threading, time
from rlprof_ops.runtime import profiler
prof = profiler.from_env(worker="policy_worker", rank=0)
async def reply(seconds):
    await asyncio.sleep(seconds)

async def replies():
    await asyncio.gather(*(prof.annotate("reply")(reply)(seconds) for seconds in (0.03, 0.02, 0.01)))

@prof.annotate("failing")
def failing():
    raise ValueError

def hard_step():
    with prof.range("generation"), prof.range("inner"):
        asyncio.run(replies())
    try:
        failing()
    except ValueError:
        pass
    for _ in prof.annotate("pieces")(lambda: (yield 1))():
        pass
    with prof.range("train"):
        thread = threading.Thread(target=prof.annotate("thread")(time.sleep), args=(0.01,))
        thread.start()
        thread.join()

for step in range(1, 8):
    with prof.step(step):
        if sys.argv[1] == "hard":
            hard_step()
            continue
        with prof.range("generation"): time.sleep(0.01)
        with prof.range("train"):
            print(step, flush=True)
            if step == int(sys.argv[2]):
                if sys.argv[1] == "raise": raise RuntimeError("training failed")
                if sys.argv[1] == "wait": time.sleep(600)
"""


@pytest.fixture
def wrapped(tmp_path):
    """Start the training above under `nsys launch`, as the plugin would; yields `start(*argv)` -> Popen."""
    started = []

    def start(*argv, steps="3:5,7"):
        node_dir = tmp_path / f"node{len(started)}"
        (node_dir / "tmp").mkdir(parents=True)
        session = f"rlprof-test-{os.getpid()}-{len(started)}-"
        request = request_from_dict({"captures": [{"backend": "nsight", "workers": ["*"], "steps": steps}]})
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TMPDIR": str(node_dir / "tmp"),
            "RLPROF_NODE_DIR": str(node_dir),
            "RLPROF_NODE": "n1",
            "RLPROF_REQUEST_JSON": request.to_json(),
        }
        command = NsysCommand("launch", "nsys", ("-t", "nvtx"), on_error="fail", session=session)
        words = [*command.words(), sys.executable, "-c", TRAINING, *argv]
        started.append(
            subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return started[-1], node_dir

    yield start
    for process in started:
        process.terminate()  # which reaches the program
        process.wait(timeout=60)


def trained(wrapped, *argv, **more):
    """The node folder of a training that ended well; begun again where nsys 2023.4 lost its own agent, as it
    does now and then on a busy machine.
    """
    for _ in range(3):
        process, node_dir = wrapped(*argv, **more)
        _, stderr = process.communicate(timeout=200)
        logs = list(node_dir.glob("events/policy_worker_*.jsonl"))
        failed = [event["reason"] for event in events(node_dir, "failed")] if logs else []
        if (process.returncode == 0 and not failed) or not BAD_LUCK.search(f"{failed} {stderr}"):
            break
    assert process.returncode == 0 and not failed, (failed, stderr)
    return node_dir


def events(node_dir, kind):
    (path,) = node_dir.glob("events/policy_worker_*.jsonl")
    return [event for event in map(json.loads, path.read_text().splitlines()) if event["event"] == kind]


def test_windows_hold_the_ranges_of_their_steps(wrapped, tmp_path):
    node_dir = trained(wrapped, "run", "0")
    reports = sorted((node_dir / "profiles/nsight/policy_worker/rank0").iterdir())
    assert [report.name.split("_n1_")[0] for report in reports] == [
        "policy_worker_rank0_step3-4",
        "policy_worker_rank0_step7-7",
    ]
    assert (
        nvtx_ranges(reports[0], tmp_path, ended=True)
        == ["generation"] * 2 + ["step 3", "step 4"] + ["train"] * 2
    )
    assert nvtx_ranges(reports[1], tmp_path, ended=True) == ["generation", "step 7", "train"]
    assert [event["partial"] for event in events(node_dir, "closed")] == [False, False]


def test_nsys_itself_sums_the_ranges_of_a_report(wrapped, tmp_path):
    node_dir = trained(wrapped, "run", "0", steps="3:5")
    (report,) = (node_dir / "profiles/nsight/policy_worker/rank0").iterdir()
    assert nvtx_sum(report, tmp_path) == {"generation": 2, "step 3": 1, "step 4": 1, "train": 2}


def test_ranges_are_balanced_with_nested_async_failing_and_threads(wrapped, tmp_path):
    node_dir = trained(wrapped, "hard", "0", steps="3")
    (report,) = (node_dir / "profiles/nsight/policy_worker/rank0").iterdir()
    expected = [
        "failing",
        "generation",
        "inner",
        "pieces",
        "reply",
        "reply",
        "reply",
        "step 3",
        "thread",
        "train",
    ]
    assert nvtx_ranges(report, tmp_path, ended=True) == expected  # only those that have an end


@pytest.mark.parametrize("how", ["raise", "SIGTERM"])
def test_a_window_is_saved_when_training_ends_in_it(wrapped, tmp_path, how):
    process, node_dir = wrapped("raise" if how == "raise" else "wait", "4")
    if how == "SIGTERM":
        for line in process.stdout:
            if line.strip() == "4":
                break
        (events_file,) = node_dir.glob("events/policy_worker_*.jsonl")
        os.kill(int(events_file.stem.rsplit("_", 1)[1]), signal.SIGTERM)
    _, stderr = process.communicate(timeout=200)

    assert process.returncode != 0
    (closed,) = events(node_dir, "closed")
    assert closed["partial"] is True and closed["seen"] == [3, 4], stderr
    assert (
        nvtx_ranges(node_dir / closed["path"], tmp_path, ended=True)
        == ["generation"] * 2 + ["step 3", "step 4"] + ["train"] * 2
    )


def test_a_killed_process_leaves_its_report_in_the_jobs_tmpdir(wrapped, tmp_path):
    process, node_dir = wrapped("wait", "4")
    for line in process.stdout:
        if line.strip() == "4":
            break
    (events_file,) = node_dir.glob("events/policy_worker_*.jsonl")
    pid = int(events_file.stem.rsplit("_", 1)[1])
    os.kill(pid, signal.SIGKILL)
    process.wait(timeout=60)

    report = node_dir / "tmp" / f"policy_worker_rank0_step3-4_n1_{pid}.nsys-rep"
    wait_until(lambda: report.exists() and nsys_cli.check(report).state == "ok")
    # What nsys had not fetched from the process yet is gone, so only that it opens is certain.
    assert set(nvtx_ranges(report, tmp_path, ended=True)) <= {
        "generation",
        "train",
        "step 3",
        "step 4",
    }
