"""Reads the SQLite export of an Nsight Systems report into columns; schemas of nsys 2022 to 2026, tables
optional.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from rlprof_ops.analyze.columns import (
    KERNEL,
    MEMCPY,
    MEMSET,
    NO_VALUE,
    Coder,
    Codes,
    GpuSpans,
    Ints,
    Launches,
    MemorySamples,
    Origin,
    Part,
    Spans,
    Trace,
    Track,
)  # fmt: skip
from rlprof_ops.analyze.readers.nsys_metrics import read_metrics
from rlprof_ops.analyze.readers.nsys_tables import Columns, Export
from rlprof_ops.analyze.readers.nvtx.nccl import with_nccl
from rlprof_ops.analyze.readers.nvtx.ranges import coded, nvtx, threads
from rlprof_ops.analyze.readers.read_error import UnreadableReport
from rlprof_ops.analyze.readers.spill import BLOCK_ROWS, Parts, in_order, release
from rlprof_ops.analyze.short_names import shortened

_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "Peer"}
_SMALL = 1 << 31
# sqlite3 raises UnicodeDecodeError where it builds a message of a damaged schema
_DAMAGE = (sqlite3.Error, OSError, ValueError, OverflowError)


def read_nsys_sqlite(path: Path, report: Path | None = None) -> Trace:
    """Columns of one nsys export.

    Parameters
    ----------
    path: the SQLite file; `report` is the `.nsys-rep` it was made from, for messages.

    Raises `UnreadableReport` when the file is no nsys export. A damaged table is read as far as it goes.
    """
    try:
        export = Export(path)
        if not export.tables & {
            "NVTX_EVENTS",
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "TARGET_INFO_SESSION_START_TIME",
            "StringIds",
        }:
            raise UnreadableReport(
                report or path, "is a SQLite file but no nsys export: it has none of nsys's tables"
            )
    except _DAMAGE as error:
        raise UnreadableReport(report or path, f"is no SQLite file that can be opened ({error})") from error
    try:
        return _read(export)
    except _DAMAGE as error:
        raise UnreadableReport(report or path, f"the nsys export is damaged ({error})") from error
    finally:
        export.connection.close()


def _read(export: Export) -> Trace:
    strings: dict[int, str] = export.pairs("StringIds", "id", "value")
    names, tracks = Coder[str](), Coder[Track]()
    gpu = _gpu(export, strings, names, tracks)
    launches = _launches(export, strings, names, tracks)
    ranges, ops = nvtx(export, strings, names, tracks)
    memory = _memory(export, tracks)
    metrics, metered = read_metrics(export)
    collectives = with_nccl(export, strings, names.values(), tracks, gpu, launches)
    trace = Trace(
        origin=Origin(kind="nsys", metered=metered),
        names=tuple(shortened(name) for name in names.values()),
        collectives=collectives,
        tracks=tracks.values(),
        ranges=ranges,
        ops=ops,
        launches=launches,
        gpu=gpu,
        memory=memory,
        metrics=metrics,
        events=len(gpu) + len(launches) + len(ranges) + len(ops) + len(memory),
        truncated="; ".join(export.damage),
    )
    return _placed(export, trace)


_GPU_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")


def _gpu(export: Export, strings: dict[int, str], names: Coder[str], tracks: Coder[Track]) -> GpuSpans:
    parts = Parts()
    for kernels in export.batches("CUPTI_ACTIVITY_KIND_KERNEL", (*_GPU_COLUMNS, "demangledName")):
        parts.append(
            _gpu_part(kernels, tracks, KERNEL, coded(kernels.pop("demangledName"), strings, names, "kernel"))
        )
    for graphs in export.batches("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _GPU_COLUMNS):
        parts.append(
            _gpu_part(
                graphs, tracks, KERNEL, np.full(len(graphs["start"]), names.one("CUDA graph"), np.int32)
            )
        )
    for copies in export.batches("CUPTI_ACTIVITY_KIND_MEMCPY", (*_GPU_COLUMNS, "bytes", "copyKind")):
        distinct, kinds = np.unique(copies["copyKind"], return_inverse=True)
        labels = np.array(
            [names.one(f"Memcpy {_COPY_KINDS.get(kind, '?')}") for kind in distinct.tolist()], np.int32
        )
        parts.append(_gpu_part(copies, tracks, MEMCPY, labels[kinds], copies["bytes"]))
    for sets in export.batches("CUPTI_ACTIVITY_KIND_MEMSET", (*_GPU_COLUMNS, "bytes")):
        parts.append(
            _gpu_part(
                sets,
                tracks,
                MEMSET,
                np.full(len(sets["start"]), names.one("Memset"), np.int32),
                sets["bytes"],
            )
        )
    return in_order(parts.table(GpuSpans))


def _gpu_part(
    rows: Columns, tracks: Coder[Track], kind: int, name: Codes, size_bytes: Ints | None = None
) -> Part:
    count = len(rows["start"])
    return {
        "start": rows["start"],
        "duration": _durations(rows),
        "name": name,
        "track": threads(rows.pop("globalPid"), tracks),
        "kind": np.full(count, kind, np.uint8),
        "device": _small(rows.pop("deviceId")),
        "stream": _small(rows.pop("streamId")),
        "correlation": rows["correlationId"],
        "size_bytes": np.full(count, NO_VALUE) if size_bytes is None else size_bytes,
        "collective": np.full(count, NO_VALUE, np.int32),
    }


def _durations(rows: Columns) -> Ints:
    """(n,) end - start, never negative, in the place of the ends."""
    ends: Ints = rows.pop("end")
    ends -= rows["start"]
    return np.maximum(ends, 0, out=ends)


def _launches(export: Export, strings: dict[int, str], names: Coder[str], tracks: Coder[Track]) -> Launches:
    parts = Parts()
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for rows in export.batches(table, ("start", "end", "globalTid", "correlationId", "nameId")):
            parts.append({
                "start": rows["start"],
                "duration": _durations(rows),
                "name": coded(rows.pop("nameId"), strings, names, "CUDA call"),
                "track": threads(rows.pop("globalTid"), tracks),
                "correlation": rows["correlationId"],
            })  # fmt: skip
    return parts.table(Launches)


def _memory(export: Export, tracks: Coder[Track]) -> MemorySamples:
    """Running sum of each process's allocations; operation 0 allocates and 1 frees
    (ENUM_CUDA_DEV_MEM_EVENT_OPER). What was allocated before the window is known as far as it is freed in it.
    """
    wanted = ("start", "globalPid", "deviceId", "bytes", "memoryOperationType")
    rows = export.read("CUDA_GPU_MEMORY_USAGE_EVENTS", wanted)
    order = np.argsort(rows["start"], kind="stable")
    device, track = _small(rows["deviceId"][order]), threads(rows["globalPid"][order], tracks)
    change = np.where(rows["memoryOperationType"][order] == 1, -rows["bytes"][order], rows["bytes"][order])
    held = np.zeros(len(order), np.int64)
    for process, one in {*zip(track.tolist(), device.tolist(), strict=True)}:
        mine = (track == process) & (device == one)
        sums = np.cumsum(change[mine])
        held[mine] = sums - min(0, int(sums.min()))
    return MemorySamples(rows["start"][order], track, device, held, np.full(len(order), NO_VALUE, np.int64))


def _placed(export: Export, trace: Trace) -> Trace:
    """The trace with its origin known and its times moved to UTC, where the export says when the session
    began.
    """
    began = export.read("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
    environment = export.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")
    tables = [t for t in (trace.ranges, trace.ops, trace.launches, trace.gpu) if len(t)]
    reaches = [_reach(table) for table in tables]
    first = min((begin for begin, _ in reaches), default=0)
    last = max((end for _, end in reaches), default=0)
    details = export.pairs("META_DATA_EXPORT", "name", "value")
    origin = replace(
        trace.origin,
        host=str(environment.get("Hostname") or ""),
        pid=_main_process(trace),
        window_start=first,
        window_end=last,
        gpus=_physical(export),
        devices=tuple(
            str(v) for _, v in sorted(export.pairs("TARGET_INFO_GPU", "id", "name").items(), key=str)
        ),
        details={
            key: str(details[key])[:200]
            for key in ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
            if key in details
        },
    )
    trace = replace(trace, origin=origin, gpu=_one_id_a_gpu(trace, origin.gpus))
    if len(began["utcEpochNs"]) == 0 or began["utcEpochNs"][0] <= 0:
        return trace
    # from 2025 on times may be the target's own clock; before, they count from the session's start
    zero, utc = max(int(began["systemClockNs"][0]), 0), int(began["utcEpochNs"][0])
    over = utc + sum(export.read("ANALYSIS_DETAILS", ("duration",))["duration"].tolist()[:1])
    trace = replace(trace, origin=replace(origin, on_utc=True, recorded=(utc, over))).shift(utc - zero)
    release(trace.launches, trace.gpu)
    return trace


def _reach(table: Spans) -> tuple[int, int]:
    """First start and last end, a block at a time."""
    first, last = int(table.start[0]), int(table.start[0])
    for low in range(0, len(table), BLOCK_ROWS):
        part = slice(low, low + BLOCK_ROWS)
        start = table.start[part]
        first = min(first, int(start.min()))
        last = max(last, int((start + table.duration[part]).max()))
        release(table)
    return first, last


def _physical(export: Export) -> tuple[tuple[int, int, str], ...]:
    """(pid, device as that process counts, UUID) of every GPU that a process saw.

    `CUDA_VISIBLE_DEVICES` makes each of eight GPUs device 0 of its process; several may use one GPU.
    """
    table, uuid_of = "TARGET_INFO_CUDA_DEVICE", export.pairs("TARGET_INFO_GPU", "id", "uuid")
    if table not in export.tables or not {"pid", "cudaId"} <= export.columns_of(table):
        return ()
    present = export.columns_of(table)
    chosen = ", ".join(c if c in present else "null" for c in ("pid", "cudaId", "uuid", "gpuId"))
    found = []
    try:
        for pid, device, uuid, gpu in export.connection.execute(f"select {chosen} from {table}"):
            known = uuid or uuid_of.get(gpu)
            if isinstance(pid, int) and isinstance(device, int) and isinstance(known, str) and known:
                found.append((pid, device, known))
    except sqlite3.Error as error:
        export.damage.append(f"table {table}: {error}")
    return tuple(sorted(set(found)))


def _one_id_a_gpu(trace: Trace, gpus: tuple[tuple[int, int, str], ...]) -> GpuSpans:
    """The work with one device id for each UUID of a process, the lowest."""
    lowest: dict[tuple[int, str], int] = {}
    for pid, device, uuid in gpus:
        known = lowest.setdefault((pid, uuid), device)
        for code in [i for i, (p, _) in enumerate(trace.tracks) if p == str(pid)] if known != device else []:
            trace.gpu.device[(trace.gpu.track == code) & (trace.gpu.device == device)] = known
    return trace.gpu


def _main_process(trace: Trace) -> int:
    for table in (trace.ranges, trace.launches, trace.ops):
        if len(table):
            busiest = int(np.bincount(table.track).argmax())
            release(table)
            return int(trace.tracks[busiest][0])
    return NO_VALUE


def _small(values: Ints) -> npt.NDArray[np.int32]:
    return np.where((values >= -1) & (values < _SMALL), values, NO_VALUE).astype(np.int32)
