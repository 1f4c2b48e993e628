"""Captures CUDA graphs one after another, as vLLM and torch.compile do: graphs.py SECONDS BACKEND MODE

Beside it, in a thread of its own, windows of BACKEND (torch, memory; `-` for none) open and close, as a
window inside a step does. MODE is torch's `capture_error_mode`. Prints as JSON
{"graphs": 12, "windows": 5, "failed": "why"}.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from rlprof_ops import backends
from rlprof_ops.request.model import CaptureSpec

_OPEN_S, _CLOSED_S = 0.15, 0.05
_KERNELS = 2000


def captured(mode: str) -> None:
    """One graph of many kernels, and what capturing needs of the allocator; it is run once."""
    still = torch.randn(64, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        for _ in range(_KERNELS):
            still = torch.tanh(still)
    graph.replay()
    torch.cuda.synchronize()


def windows(backend: str, ended: threading.Event, folder: Path, told: dict[str, object]) -> None:
    recorder, why = backends.get(backend).recorder(CaptureSpec(backend=backend), ())
    assert recorder is not None, why
    number = 0
    while not ended.is_set():
        number += 1
        try:
            recorder.open(folder / f"window{number}{recorder.suffix}")
            recorder.entered(number)
            ended.wait(_OPEN_S)
            recorder.close()
        except Exception as error:
            told.setdefault("window_failed", f"{type(error).__name__}: {error}"[:300])
        told["windows"] = number
        ended.wait(_CLOSED_S)


def main() -> None:
    seconds, backend, mode = float(sys.argv[1]), sys.argv[2], sys.argv[3]
    told: dict[str, object] = {"graphs": 0, "windows": 0, "failed": "", "longest_s": 0.0}
    captured(mode)
    ended, made, longest = threading.Event(), 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        beside = threading.Thread(target=windows, args=(backend, ended, Path(folder), told))
        if backend != "-":
            beside.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                captured(mode)
            except Exception as error:
                told["failed"] = f"{type(error).__name__}: {error}"[:300]
                break
            made, longest = made + 1, max(longest, time.monotonic() - began)
        ended.set()
        if backend != "-":
            beside.join(60)
    print(json.dumps({**told, "graphs": made, "longest_s": round(longest, 3)}), flush=True)


if __name__ == "__main__":
    main()
