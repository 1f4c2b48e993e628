"""torch traces of a GPU, two processes on one GPU, and what the flight recorder costs a loop on it."""

from __future__ import annotations

import gzip
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.programs import run
from tests.gpu.session import Worker, bare

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
Say = Callable[[str], None]
WINDOW = """
import torch
from rlprof_ops.runtime import profiler
prof = profiler.from_env(worker="trainer", rank=0, world_size=1)
device = "cuda" if torch.cuda.is_available() else "cpu"
group = "nccl" if device == "cuda" else "gloo"
torch.distributed.init_process_group(group, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
x = torch.randn(256, 256, device=device)
for step in range(1, 5):
    with prof.step(step):
        x = torch.tanh(x @ x)
        torch.distributed.all_reduce(x)
prof.close()
"""
PRODUCTS = """
import torch
from rlprof_ops.runtime import profiler
prof = profiler.from_env(worker="trainer", rank=0, world_size=1)
device = "cuda" if torch.cuda.is_available() else "cpu"
size = 8192 if device == "cuda" else 256
a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in "ab")
for _ in range(20):
    a @ b
for step in (1, 2):
    with prof.step(step):
        if device == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in "12")
            torch.cuda.synchronize()
            first.record()
        for _ in range(50):
            a @ b
        if device == "cuda":
            last.record()
            torch.cuda.synchronize()
            took_s = first.elapsed_time(last) / 1e3
prof.close()
print(50 * 2 * size**3 / took_s / 1e12 if device == "cuda" else 0)
"""
LOOP = """
import sys, time, torch
from rlprof_ops.runtime import profiler
prof = profiler.from_env(worker="trainer", rank=0, world_size=1)
device = "cuda" if torch.cuda.is_available() else "cpu"
x, times = torch.randn(512, 512, device=device), []
for step in range(1, 101):
    began = time.perf_counter()
    with prof.step(step):
        for phase in ("generation", "train"):
            with prof.range(phase):
                for _ in range(400):
                    x = torch.tanh(x @ x)
                x.sum().item()
    times.append(time.perf_counter() - began)
print(sorted(times)[50])
"""


def test_a_torch_trace_has_kernels_shapes_stacks_and_collectives(gpu: bool, finding: Say, tmp_path: Path):
    options = json.dumps({"record_shapes": True, "with_stack": True})
    asked = {"RLPROF_STEPS": "2", "RLPROF_WORKERS": "trainer", "RLPROF_BACKEND": "torch"}
    run(WINDOW, tmp_path, RLPROF_OPTIONS=options, **asked)
    [path] = tmp_path.rglob("*.pt.trace.json.gz")
    with gzip.open(path) as packed:
        events = json.load(packed)["traceEvents"]
    kinds = {
        kind: sum(event.get("cat") == kind for event in events) for kind in ("kernel", "python_function")
    }
    shapes = sum("Input Dims" in event.get("args", {}) for event in events)
    nccl = [event["args"] for event in events if "Collective name" in event.get("args", {})]
    finding(
        f"torch trace: {kinds}, {shapes} shapes, arguments of collectives {sorted(nccl[0]) if nccl else '-'}"
    )
    assert shapes and kinds["python_function"]
    assert not gpu or (kinds["kernel"] and nccl)


def test_the_rate_of_a_product_is_the_one_that_cudas_events_give(gpu: bool, finding: Say, tmp_path: Path):
    reporting = pytest.importorskip("tests.analyze.as_data", reason="the extra `analyze` is not installed")
    asked = {"RLPROF_STEPS": "2", "RLPROF_WORKERS": "trainer", "RLPROF_BACKEND": "torch"}
    options = json.dumps({"record_shapes": True})
    truth = float(run(PRODUCTS, tmp_path, RLPROF_OPTIONS=options, **asked).split()[-1])
    rows = reporting.answer_of(tmp_path, quiet=True)["operators"]
    finding(f"50 products of 8192 in bf16: {truth:.0f} TFLOP/s by CUDA's events, the report says {rows[:1]}")
    assert not gpu or rows[0]["tflops"] == pytest.approx(truth, rel=0.05)


def test_two_processes_that_take_turns_on_one_gpu(gpu: bool, finding: Say):
    """Each sleeps while the other works: a step of one is no longer than it is alone."""
    kernels = 20_000 if gpu else 2000

    def step_s(worker: Worker) -> float:
        return float(worker.ask("steps", steps=1, kernels=kernels)["times"][0])

    with bare() as one, bare() as other:
        alone = [step_s(one) for _ in range(5)]
        turns = []
        for _ in range(5):
            turns.append(step_s(one))
            step_s(other)
            time.sleep(0.01)
    ratio = statistics.median(turns) / statistics.median(alone)
    finding(f"two processes in turns on one GPU: a step takes {ratio:.3f} of its time alone")
    assert not gpu or ratio < 1.2


def test_cost_of_the_flight_recorder(gpu: bool, finding: Say, tmp_path: Path):
    def step_s(record: str) -> float:
        return float(run(LOOP, tmp_path, RLPROF_RECORD=record, RLPROF_ON_DEMAND="1").split()[-1])

    pairs = [(step_s("0"), step_s("1")) for _ in range(3)]
    ratio = statistics.median(on / off for off, on in pairs)
    finding(f"flight recorder: a step of {pairs[0][0] * 1e3:.2f} ms takes {ratio:.4f} of its time without")
    assert not gpu or ratio < 1.1  # three pairs on an H200: 1.00 to 1.07
