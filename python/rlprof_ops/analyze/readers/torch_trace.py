"""Reads a trace of torch.profiler (Kineto's Chrome JSON) into columns: NVIDIA, AMD and CPU-only, any
layout.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from rlprof_ops.analyze import collecting
from rlprof_ops.analyze.columns import (
    NO_VALUE,
    Collective,
    GpuSpans,
    Launches,
    MemorySamples,
    Origin,
    Shaped,
    Spans,
    Trace,
)
from rlprof_ops.analyze.readers.chrome_events import ChromeEvents, Event
from rlprof_ops.analyze.readers.read_error import UnreadableReport
from rlprof_ops.analyze.readers.scan.batches import Scanned
from rlprof_ops.analyze.readers.spill import in_order, release
from rlprof_ops.analyze.readers.torch_columns import INT64, Columns, members, text, whole
from rlprof_ops.analyze.short_names import shortened
from rlprof_ops.backends.torch.trace_check import GPUS_KEY

_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_HOST = re.compile(rb'"host_name"\s*:\s*"([^"\\]{1,255})"')
_RANK = re.compile(rb'"rank"\s*:\s*(\d{1,9})')


def read_torch(path: Path, export_s: float | None = None) -> Trace:
    """Columns of one torch-profiler trace; nothing has to export it.

    Raises
    ------
    UnreadableReport
        when the file has no event that can be used. A file that ends early, or holds damaged events, is read
        as far
        as it goes: see `Trace.truncated` and `Trace.damaged`.
    """
    stream, columns = ChromeEvents(path, scanned=True), Columns()
    try:
        with collecting.paused():
            for batch in stream:
                columns.add_batch(batch)
                del batch
    except OSError as error:
        raise UnreadableReport(path, str(error)) from error
    if columns.events == 0:
        reason = stream.truncated or "the list of events is empty"
        raise UnreadableReport(
            path, f"{reason}; {stream.damaged} damaged events" if stream.damaged else reason
        )
    return _assemble(stream, columns)


def _assemble(stream: ChromeEvents[Event | Scanned], columns: Columns) -> Trace:
    trace = Trace(
        origin=_origin(stream, columns),
        names=tuple(shortened(text(name)) for name in columns.names.values()),
        tracks=tuple((str(pid), str(tid)) for pid, tid in columns.tracks.values()),
        ranges=in_order(columns.ranges.table(Spans)),
        ops=columns.ops.table(Spans),
        launches=columns.launches.table(Launches),
        gpu=in_order(columns.gpu.table(GpuSpans)),
        memory=columns.memory.table(MemorySamples),
        shaped=columns.shaped.table(Shaped),
        shapes=columns.shapes.values(),
        collectives=_with_members(columns.collectives.values(), stream.header.get("distributedInfo")),
        events=columns.events,
        damaged=columns.damaged + stream.damaged,
        truncated=stream.truncated,
    )
    trace = _with_window(trace, columns.span).shift(_base_ns(stream))
    release(trace.ranges, trace.ops, trace.shaped, trace.launches, trace.gpu, trace.memory)
    return trace


def _with_members(found: tuple[Collective, ...], shared: object) -> tuple[Collective, ...]:
    """The collectives, those that name their process group but list no ranks with the header's list."""
    config = shared.get("pg_config") if isinstance(shared, dict) else None
    listed = {
        text(group.get("pg_name")): members(group.get("ranks"))
        for group in (config if isinstance(config, list) else [])
        if isinstance(group, dict)
    }
    return tuple(
        replace(one, members=listed[one.name]) if not one.members and listed.get(one.name) else one
        for one in found
    )


def _with_window(trace: Trace, span: tuple[int, int] | None) -> Trace:
    if span is None:
        tables = [t for t in (trace.ranges, trace.ops, trace.launches, trace.gpu) if len(t)]
        if not tables:
            return trace
        span = min(int(t.start.min()) for t in tables), max(int(t.end.max()) for t in tables)
    return replace(trace, origin=replace(trace.origin, window_start=span[0], window_end=span[1]))


def _gpus(told: object, pid: int) -> tuple[tuple[int, int, str], ...]:
    """(pid, device, UUID) of the GPUs, which our recorder writes into its traces."""
    pairs = told.items() if isinstance(told, dict) else ()
    return tuple(
        (pid, int(device), uuid)
        for device, uuid in sorted(pairs, key=str)
        if isinstance(uuid, str) and uuid and str(device).isdecimal() and len(str(device)) < 6
    )


def _base_ns(stream: ChromeEvents[Event | Scanned]) -> int:
    base = stream.header.get("baseTimeNanoseconds")
    if not isinstance(base, int):
        found = _BASE.search(stream.header_text)
        base = int(found.group(1)) if found else 0
    return base if 0 <= base < INT64 // 4 else 0


def _origin(stream: ChromeEvents[Event | Scanned], columns: Columns) -> Origin:
    header = stream.header
    shared = header.get("distributedInfo")
    shared = shared if isinstance(shared, dict) else {}
    host = header.get("host_name")
    if not isinstance(host, str):
        found = _HOST.search(stream.header_text)
        host = found.group(1).decode("utf-8", "replace") if found else ""
    rank = whole(shared.get("rank"))
    if rank == NO_VALUE and not shared:
        found = _RANK.search(stream.header_text.partition(b'"distributedInfo"')[2][:4096])
        rank = int(found.group(1)) if found else NO_VALUE
    pid = columns.pid()
    properties = header.get("deviceProperties")
    devices = (
        [d.get("name") for d in properties if isinstance(d, dict)] if isinstance(properties, list) else []
    )
    process = int(pid) if pid.lstrip("-").isdigit() and len(pid) < 12 else NO_VALUE
    versions = ("cuda_runtime_version", "hip_runtime_version", "cuda_driver_version", "trace_id")
    return Origin(
        kind="torch",
        host=host,
        pid=process,
        rank=rank,
        world_size=whole(shared.get("world_size")),
        on_utc=True,
        devices=tuple(text(name or "") for name in devices),
        gpus=_gpus(header.get(GPUS_KEY), process),
        details={key: str(header[key])[:200] for key in versions if key in header},
    )
