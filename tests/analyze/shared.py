"""What the tests of the analysis share: where the real traces lie, and small traces made on the spot."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
TORCH_FILES = tuple(sorted(path.name.removesuffix(".json.gz") for path in (DATA / "torch").iterdir()))


def real(name: str) -> Path:
    """A real trace, whole or a stretch of one; tests/analyze/data/README.md says where each comes from."""
    return DATA / name


def x(cat: str, name: str, ts: float, dur: float, pid: Any = 1, tid: Any = 1, **args: Any) -> dict[str, Any]:
    """One complete event, times in µs."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(
    name: str, ts: float, dur: float, stream: int = 7, device: int = 0, correlation: int = 0, **args: Any
) -> dict[str, Any]:
    return x(
        "kernel", name, ts, dur, device, stream, device=device, stream=stream, correlation=correlation, **args
    )


def launch(ts: float, correlation: int, dur: float = 2.0, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return x("cuda_runtime", name, ts, dur, 1, 1, correlation=correlation)


def mark(name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return x("user_annotation", name, ts, dur, 1, tid)


def write_trace(
    path: Path, events: list[dict[str, Any]], indent: int | None = None, base_ns: int = 0, **header: Any
) -> Path:
    """A Chrome trace file; gzip when its name ends so."""
    text = json.dumps(
        {"schemaVersion": 1, **header, "baseTimeNanoseconds": base_ns, "traceEvents": events}, indent=indent
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data, 1) if path.name.endswith(".gz") else data)
    return path
