"""torch traces of a GPU, two processes on one GPU, and what the flight recorder costs a loop on it."""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

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
LOOP = """
import sys, time, torch
from rlprof_ops.runtime import profiler
prof = profiler.from_env(worker="trainer", rank=0, world_size=1)
device = "cuda" if torch.cuda.is_available() else "cpu"
x, times = torch.randn(512, 512, device=device), []
for step in range(1, 301):
    began = time.perf_counter()
    with prof.step(step):
        for phase in ("generation", "train"):
            with prof.range(phase):
                for _ in range(20):
                    x = torch.tanh(x @ x)
                x.sum().item()
    times.append(time.perf_counter() - began)
print(sorted(times)[150])
"""


def run(program: str, folder: Path, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RLPROF_")}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), "RLPROF_NODE_DIR": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


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
    assert not gpu or ratio < 1.02
