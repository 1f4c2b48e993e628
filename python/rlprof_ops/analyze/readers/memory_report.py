"""Sums up memory reports: CUDA snapshots of torch (`.pickle`) and resident host memory
(`.host-memory.json.gz`).
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from rlprof_ops.analyze.columns import (
    NO_VALUE,
    GpuSpans,
    Ints,
    Launches,
    MemorySamples,
    Origin,
    Spans,
    Trace,
    join,
)
from rlprof_ops.analyze.hang.plain_pickle import plain_pickle
from rlprof_ops.analyze.readers.read_error import UnreadableReport
from rlprof_ops.host import foreign

HOST_SUFFIX = ".host-memory.json.gz"
SUFFIX = ".pickle"
MAX_BYTES = 256 << 20  # a snapshot takes some ten times its size in memory while it is read
_DAMAGE = (
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
    OSError,
    zlib.error,
)


def read_memory(path: Path, export_s: float | None = None) -> Trace:
    """The samples of a memory report as a trace without ranges; nothing has to export it.

    Raises `UnreadableReport`.
    """
    if path.stat().st_size > MAX_BYTES:
        raise UnreadableReport(path, f"larger than {MAX_BYTES >> 20} MiB: open it in pytorch.org/memory_viz")
    try:
        return _host(path) if path.name.endswith(HOST_SUFFIX) else _snapshot(path)
    except _DAMAGE as error:
        raise UnreadableReport(
            path, f"the memory report is damaged ({type(error).__name__}: {error})"[:300]
        ) from error


def _host(path: Path) -> Trace:
    with gzip.open(path, "rb") as file:
        said = foreign.parse(file.read(MAX_BYTES))
    rows = np.array([(int(t), int(size)) for t, size in said["samples"]], np.int64).reshape(-1, 2)
    pid = said.get("pid")
    return _trace(
        rows[:, 0],
        np.full(len(rows), NO_VALUE),
        rows[:, 1],
        np.full(len(rows), NO_VALUE),
        pid if isinstance(pid, int) else NO_VALUE,
    )


def _snapshot(path: Path) -> Trace:
    """The peak of each device: from what is allocated at the end, back through the history of allocations
    and frees.
    """
    said = foreign.an_object(plain_pickle(foreign.read_bytes(path, MAX_BYTES)))
    held: dict[int, list[int]] = {}
    for segment in said["segments"]:
        sums = held.setdefault(int(segment["device"]), [0, 0])
        sums[0] += int(segment["allocated_size"])
        sums[1] += int(segment["total_size"])
    peaks = {device: (now[0], now[1]) for device, now in held.items()}
    for device, history in enumerate(said.get("device_traces") or []):
        now = list(held.get(device, [0, 0]))
        for entry in reversed(history):
            size, action = int(entry.get("size", 0)), entry.get("action")
            change = {
                "alloc": (-size, 0),
                "free_completed": (size, 0),
                "segment_alloc": (0, -size),
                "segment_free": (0, size),
                "segment_map": (0, -size),  # expandable_segments:True
                "segment_unmap": (0, size),
            }
            now = [a + b for a, b in zip(now, change.get(foreign.text(action), (0, 0)), strict=True)]
            before = peaks.get(device, (0, 0))
            peaks[device] = (max(before[0], now[0]), max(before[1], now[1]))
    devices = [device for device in sorted(peaks) if any(peaks[device])]
    columns = np.array([[device, *peaks[device]] for device in devices], np.int64).reshape(-1, 3)
    return _trace(np.zeros(len(devices), np.int64), columns[:, 0], columns[:, 1], columns[:, 2], NO_VALUE)


def _trace(time: Ints, device: Ints, allocated: Ints, reserved: Ints, pid: int) -> Trace:
    first, last = (int(time.min()), int(time.max())) if len(time) else (0, 0)
    origin = Origin(kind="memory", pid=pid, on_utc=first > 0, window_start=first, window_end=last)
    samples = MemorySamples(
        time, np.full(len(time), NO_VALUE, np.int32), device.astype(np.int32), allocated, reserved
    )
    return Trace(
        origin,
        (),
        (),
        join(Spans, []),
        join(Spans, []),
        join(Launches, []),
        join(GpuSpans, []),
        samples,
        events=len(time),
    )
