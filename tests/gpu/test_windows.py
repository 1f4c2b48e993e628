"""Windows beside what CUDA lets nobody disturb, the memory history of a GPU, and two processes on one GPU."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.backends.nsight.nsys_options import split_options
from rlprof_ops.backends.nsight.session_recorder import NsysSessionRecorder
from tests.gpu.programs import run
from tests.gpu.session import KERNELS, exported, rows, sessions, spec

pytestmark = [pytest.mark.nsys, pytest.mark.torch, pytest.mark.timeout(900)]
Say = Callable[[str], None]
GRAPHS = Path(__file__).with_name("graphs.py")
SECONDS = 6.0
OUT_OF_MEMORY = """
import torch
from rlprof_ops.runtime import profiler
prof = profiler.from_env(worker="trainer", rank=0, world_size=1)
for step in range(1, 4):
    with prof.step(step):
        kept = [torch.empty(1 << 20, device="cuda") for _ in range(50)]
        try:
            torch.empty(1 << 42, device="cuda")
        except torch.OutOfMemoryError:
            print("caught in step", step)
prof.close()
"""
# A half second of work each, in turns by a file that the other one waits for; prints its kernels' true time.
TURNS = """
import os, sys, time, torch
from pathlib import Path
from rlprof_ops.runtime import profiler
me, other, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
prof = profiler.from_env(worker=me, rank=0, world_size=1)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(2048, 2048, device=device)
for _ in range(20):
    x = torch.tanh(x @ x)
if device == "cuda":
    torch.cuda.synchronize()
def wait(path):
    until = time.monotonic() + 120
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.001)
(folder / f"{me}-ready").touch(); wait(folder / f"{other}-ready")
busy = 0.0
for step in (1, 2, 3):
    with prof.step(step):
        for turn in range(3):
            if me == "trainer":
                wait(folder / f"{other}-{step}-{turn}")
            with prof.range("train" if me == "trainer" else "generation"):
                began = time.perf_counter()
                while time.perf_counter() - began < 0.1:
                    if device == "cuda":
                        first, last = (torch.cuda.Event(enable_timing=True) for _ in "12")
                        first.record()
                    for _ in range(200 if device == "cuda" else 1):
                        x = torch.tanh(x @ x)
                    if device == "cuda":
                        last.record(); torch.cuda.synchronize()
                        busy += first.elapsed_time(last) / 1e3 if step == 2 else 0
            (folder / f"{me}-{step}-{turn}").touch()
            if me == "rollout":
                wait(folder / f"{other}-{step}-{turn}")
prof.close()
print("busy", busy)
"""
RANGED = """
import torch
x = torch.randn(64, 64, device="cuda")
torch.cuda.profiler.start()
for _ in range(100):
    x = torch.tanh(x)
torch.cuda.synchronize()
torch.cuda.profiler.stop()
"""


def graphs(*argv: str, backend: str, mode: str) -> dict[str, Any]:
    done = subprocess.run(
        [*argv, sys.executable, str(GRAPHS), str(SECONDS), backend, mode],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not told:
        return {"graphs": 0, "windows": 0, "failed": f"exit code {done.returncode}: {done.stderr[-1500:]}"}
    answer: dict[str, Any] = json.loads(told[-1])
    return answer


@pytest.mark.parametrize("mode", ["global", "thread_local"])
@pytest.mark.parametrize("backend", ["-", "torch", "memory"])
def test_a_window_that_opens_while_a_graph_is_captured_breaks_none(
    gpu: bool, finding: Say, backend: str, mode: str
):
    if not gpu:
        pytest.skip("a CUDA graph needs a GPU")
    told = graphs(backend=backend, mode=mode)
    finding(f"graphs captured beside windows of {backend}, capture mode {mode}: {told}")
    assert not told["failed"] and told["graphs"] > 10
    assert backend == "-" or told["windows"] > 3


def test_an_nsys_window_that_opens_while_a_graph_is_captured_breaks_none(
    gpu: bool, finding: Say, tmp_path: Path
):
    if not gpu:
        pytest.skip("a CUDA graph needs a GPU")
    name, ended, opened = "capturing", threading.Event(), 0
    argv = [nsys_cli.find() or "nsys", "launch", f"--session-new={name}", *split_options(spec()).launch]
    told: dict[str, Any] = {}

    def program() -> None:
        told.update(graphs(*argv, backend="-", mode="global"))
        ended.set()

    beside = threading.Thread(target=program)
    beside.start()
    while name not in sessions() and not ended.wait(0.1):
        pass
    while not ended.wait(0.5):
        recorder = NsysSessionRecorder(name, spec())
        try:
            recorder.open(tmp_path / f"window{opened}{nsys_cli.SUFFIX}")
            ended.wait(0.3)
            recorder.close().wait()
        except Exception as error:
            told.setdefault("window_failed", str(error)[:300])
            break
        opened += 1
    beside.join(300)
    finding(f"graphs captured beside {opened} windows of nsys: {told}")
    assert not told["failed"] and told["graphs"] > 10 and opened


def test_a_torch_window_beside_an_nsys_session_of_ranges(gpu: bool, finding: Say, tmp_path: Path):
    """`t: nvtx` leaves CUPTI to torch."""
    if not gpu:
        pytest.skip("CUPTI needs a GPU")
    argv = (nsys_cli.find() or "nsys", "launch", "--session-new=beside", "-t", "nvtx")
    told = graphs(*argv, backend="torch", mode="global")
    finding(f"torch windows in a session of ranges alone: {told}")
    assert not told["failed"] and "window_failed" not in told and told["windows"] > 3


def test_a_memory_window_holds_its_allocations_and_the_one_that_failed(
    gpu: bool, finding: Say, tmp_path: Path
):
    if not gpu:
        pytest.skip("torch's memory history needs CUDA")
    without = run(OUT_OF_MEMORY, tmp_path / "without", RLPROF_STEPS="")
    asked = {"RLPROF_STEPS": "2", "RLPROF_WORKERS": "trainer", "RLPROF_BACKEND": "memory"}
    printed = run(OUT_OF_MEMORY, tmp_path, **asked)
    assert printed == without and printed.count("caught") == 3
    [path] = tmp_path.rglob("*.pickle")
    actions = Counter(event["action"] for event in pickle.loads(path.read_bytes())["device_traces"][0])
    finding(f"a memory window in which an allocation failed: {dict(actions)}")
    assert actions["alloc"] >= 50 and actions["oom"] == 1


def test_two_processes_on_one_gpu_are_one_timeline(gpu: bool, finding: Say, tmp_path: Path):
    """Each works while the other one waits: by CUDA's events the GPU is busy as long as both were."""
    reporting = pytest.importorskip("tests.analyze.as_data", reason="the extra `analyze` is not installed")
    asked = {"RLPROF_STEPS": "2", "RLPROF_WORKERS": "*", "RLPROF_BACKEND": "torch"}
    printed: dict[str, str] = {}

    def process(me: str, other: str) -> None:
        printed[me] = run(TURNS, tmp_path, me, other, str(tmp_path), **asked)

    both = [
        threading.Thread(target=process, args=pair)
        for pair in (("trainer", "rollout"), ("rollout", "trainer"))
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(300)
    truth = {me: float(text.split()[-1]) for me, text in printed.items()}
    traces = sorted(tmp_path.rglob("*.pt.trace.json.gz"))
    if kept := os.environ.get("RLPROF_GPU_KEEP"):
        for path in traces:
            shutil.copy(path, kept)
    answer = reporting.answer_of(tmp_path, quiet=True)
    said = {answer["ranks"][row["rank"]]["worker"]: row["busy_ns"] / 1e9 for row in answer["gpu"]}
    shared = answer["shared_gpus"]
    finding(f"two processes in turns: busy {said}, by CUDA's events {truth}, one GPU {shared}")
    if not gpu:
        return
    [one] = shared
    assert one["busy_ns"] / 1e9 == pytest.approx(sum(truth.values()), rel=0.05)
    for me, seconds in truth.items():
        assert said[me] == pytest.approx(seconds, rel=0.05)


def test_a_capture_range_of_the_programs_own(gpu: bool, finding: Say, tmp_path: Path):
    """As trainers open one outside a job of ours, by `torch.cuda.profiler`."""
    if not gpu:
        pytest.skip("kernels need a GPU")
    argv = [nsys_cli.find() or "nsys", "profile", "-t", "cuda,nvtx", "--capture-range=cudaProfilerApi"]
    argv += ["--capture-range-end=repeat", "-o", str(tmp_path / "ranged"), sys.executable, "-c", RANGED]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    reports = sorted(tmp_path.glob("ranged*.nsys-rep"))
    found = [rows(exported(report)[0], KERNELS) for report in reports]
    finding(f"a capture range of the program's own: {[path.name for path in reports]}, kernels {found}")
    assert found and found[0] >= 100, done.stderr[-2000:]
