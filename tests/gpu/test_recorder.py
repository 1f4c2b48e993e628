"""What NVML tells the flight recorder of a real GPU, beside nvidia-smi; an XID; whether a fault is seen."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rlprof_ops.recorder.samples.gpu import GpuSample, GpuSamples

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
Say = Callable[[str], None]
QUERY = "utilization.gpu,temperature.gpu,power.draw,clocks.sm,memory.used,memory.total"
FAULT = """
import torch
x = torch.zeros(10, device="cuda")
x[torch.tensor([1 << 40], device="cuda")] = 1
torch.cuda.synchronize()
"""


@pytest.fixture
def samples(gpu: bool) -> Iterator[GpuSamples]:
    if not gpu:
        pytest.skip("NVML needs a GPU")
    found = GpuSamples()
    yield found
    found.close()


def smi() -> list[float]:
    argv = ["nvidia-smi", "--id=0", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return [float(each) for each in done.stdout.split(",")]


def test_a_busy_gpu_is_as_nvidia_smi_tells_it(samples: GpuSamples, finding: Say):
    import torch

    assert len(samples) == torch.cuda.device_count()
    ended = threading.Event()

    def work() -> None:
        x = torch.randn(4096, 4096, device="cuda")
        while not ended.is_set():
            for _ in range(50):
                x = torch.tanh(x @ x)
            torch.cuda.synchronize()

    working = threading.Thread(target=work)
    working.start()
    try:
        time.sleep(3)
        samples.look()
        began = time.perf_counter()
        mine = samples.look()[0]
        took_s = time.perf_counter() - began
        told = smi()
    finally:
        ended.set()
        working.join()
    mib = mine.memory_mib, mine.memory_total_mib
    seen = mine.busy_percent, mine.temperature_c, mine.power_w, mine.sm_mhz, *mib
    finding(f"NVML {seen} and nvidia-smi {told} ({QUERY}); a look takes {took_s * 1e3:.1f} ms; {mine}")
    assert mine.busy_percent > 80
    assert abs(mine.temperature_c - told[1]) <= 5 and mine.power_w == pytest.approx(told[2], rel=0.2)
    assert mine.sm_mhz == pytest.approx(told[3], rel=0.1)
    assert mine.memory_mib == pytest.approx(told[4], abs=1200)  # nvidia-smi leaves out what the driver took
    assert mine.memory_total_mib == pytest.approx(told[5], rel=0.01)


def test_an_xid_is_heard(samples: GpuSamples, finding: Say):
    """A program that faults on the GPU and ends by it."""
    before = samples.look()[0]
    done = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, timeout=120, check=False)
    assert done.returncode
    after: GpuSample = before
    until = time.monotonic() + 5
    while not after.xid and time.monotonic() < until:
        time.sleep(0.2)
        after = samples.look()[0]
    finding(f"XID before {before.xid}, after a device-side assert {after.xid}")
