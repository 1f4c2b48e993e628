"""What the tests of the analysis share: where the real traces lie, and small traces made on the spot."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

_REPO = Path(__file__).resolve().parents[2]


def shared_folder() -> Path | None:
    """`shared/` beside the project (or beside the folder of its work trees), or `$RLPROF_SHARED`."""
    named = os.environ.get("RLPROF_SHARED")
    places = [Path(named)] if named else [_REPO.parent / "shared", _REPO.parent.parent / "shared"]
    return next((place for place in places if (place / "data").is_dir()), None)


def real(name: str) -> Path:
    """A real trace; skips the test, saying so, where it is absent."""
    named = os.environ.get("RLPROF_SHARED_DATA")
    folder = Path(named) if named else (shared_folder() or Path("/nonexistent")) / "data"
    if not (folder / name).is_file():
        pytest.skip(f"no real trace {name}: ../shared/data is absent (set RLPROF_SHARED_DATA)")
    return folder / name


def tool(name: str) -> Path:
    folder = shared_folder()
    if folder is None or not (folder / "tools" / name).is_file():
        pytest.skip(f"no {name}: ../shared/tools is absent (set RLPROF_SHARED)")
    return folder / "tools" / name


TORCH_FILES = (
    "b200_eager",
    "h100_qwen1.5_0.5b",
    "mi300_qwen1.5_0.5b",
    "nccl_training",
    "rank_not_found",
    "sampled_rank-0",
    "sampled_rank-1",
    "sglang_qwen3_8b_decode",
    "vllm_prefill_decode_piecewise",
)


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
