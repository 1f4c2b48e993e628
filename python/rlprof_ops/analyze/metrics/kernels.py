"""Which kernels and operators a phase's time goes to, what communication moved, and its peaks of memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from rlprof_ops.analyze.columns import FEW_ROWS, NO_VALUE, Codes, Ints, Trace, codes_where, distinct
from rlprof_ops.analyze.kernel_names import communicates
from rlprof_ops.analyze.metrics.collective_events import communicator_of
from rlprof_ops.analyze.metrics.phases import Segment
from rlprof_ops.analyze.readers.spill import release, rows_named
from rlprof_ops.analyze.report_model import MemoryPeak

NO_PHASE = ""
TOP = 4000  # names of a phase that a summary carries: what is cut here is in no sum over ranks
_ROWS = 1 << 17


class NameTotal(Struct, frozen=True):
    """All calls of one kernel or operator in one phase of one trace."""

    phase: str
    name: str
    count: int
    total_ns: int
    max_ns: int


def phase_codes(times: Ints, segments: tuple[Segment, ...]) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
    """(n,) code of the phase that each of n moments lies in, and the phases' names; code 0 is "no phase"."""
    phases = (NO_PHASE, *dict.fromkeys(segment.phase for segment in segments))
    if not segments:
        return np.zeros(len(times), np.int32), phases
    ordered = sorted(segments, key=lambda s: s.start)
    starts = np.array([s.start for s in ordered], np.int64)
    ends = np.array([s.end for s in ordered], np.int64)
    codes = np.array([phases.index(s.phase) for s in ordered], np.int32)
    index = np.searchsorted(starts, times, side="right") - 1
    safe = np.maximum(index, 0)
    return np.where((index >= 0) & (times < ends[safe]), codes[safe], 0).astype(np.int32), phases


def totals(
    name: Codes,
    duration: Ints,
    moments: Callable[[slice], Ints],
    names: tuple[str, ...],
    segments: tuple[Segment, ...],
) -> tuple[NameTotal, ...]:
    """Count, sum and maximum by (phase, name); the `TOP` longest of each phase, the others as one line
    "(others)".

    `moments` says of some rows when they happened, which decides their phase. Rows are taken `_ROWS` at a
    time.
    """
    if len(name) == 0:
        return ()
    phases: tuple[str, ...] = ()
    tables: list[Ints] = []
    for first in range(0, len(name), _ROWS):
        part = slice(first, first + _ROWS)
        phase, phases = phase_codes(moments(part), segments)
        lasted = duration[part]
        key = phase.astype(np.int64) * len(names) + name[part]
        tables.append(_summed(key, np.ones(len(key), np.int64), lasted, lasted))
    table = tables[0] if len(tables) == 1 else _summed(*np.concatenate(tables, axis=1))
    rows: list[NameTotal] = []
    first_of = np.searchsorted(table[0], np.arange(len(phases) + 1) * len(names)).tolist()
    for phase_name, (first, last) in zip(phases, pairwise(first_of), strict=True):
        mine = table[:, first:last]
        mine = mine[:, np.argsort(-mine[2], kind="stable")]
        for key, count, total, longest in mine[:, :TOP].T.tolist():
            rows.append(NameTotal(phase_name, names[key % len(names)], count, total, longest))
        if mine.shape[1] > TOP:
            _, count, total, longest = mine[:, TOP:]
            others = int(count.sum()), int(total.sum()), int(longest.max())
            rows.append(NameTotal(phase_name, "(others)", *others))
    return tuple(rows)


def _summed(key: Ints, count: Ints, total: Ints, longest: Ints) -> Ints:
    """(4, k) distinct keys in order, and the sums of the counts and durations of each and their maximum."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    firsts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    sums = (np.add.reduceat(column[order], firsts) for column in (count, total))
    return np.stack((ordered[firsts], *sums, np.maximum.reduceat(longest[order], firsts)))


def top_kernels(trace: Trace, segments: tuple[Segment, ...]) -> tuple[NameTotal, ...]:
    """GPU work by phase and name. The phase is where its launch was called, for a kernel may run long
    after the host has gone on to the next phase; where no launch is known, where it ran.
    """
    return totals(trace.gpu.name, trace.gpu.duration, launch_moments(trace), trace.names, segments)


def launch_moments(trace: Trace) -> Callable[[slice | Ints], Ints]:
    """When some rows of GPU work were asked for; where no launch is known, when they ran."""
    if len(trace.gpu) < FEW_ROWS:
        return trace.asked_for.__getitem__
    index = trace.launches.index

    def asked_for(part: slice | Ints) -> Ints:
        release(trace.gpu, trace.launches)
        return index.asked_for(trace.gpu, part)

    return asked_for


def top_ops(trace: Trace, segments: tuple[Segment, ...]) -> tuple[NameTotal, ...]:
    """Framework operators by phase and name, host time, nested operators counted in both."""

    def began(part: slice) -> Ints:
        release(trace.ops)
        return trace.ops.start[part]

    return totals(trace.ops.name, trace.ops.duration, began, trace.names, segments)


class CollectiveTotal(Struct, frozen=True):
    """All calls of one collective on one communicator in one trace.

    `bus_bytes` is what the ring or tree must move a rank, by NCCL's rule (nccl-tests, doc/PERFORMANCE.md):
    all-reduce 2(n-1)/n, all-gather, reduce-scatter and all-to-all (n-1)/n of the larger buffer, the others 1.
    0 where sizes are unknown, or n where it counts.
    """

    op: str
    group: str
    group_size: int
    dtype: str
    count: int
    total_ns: int
    min_ns: int
    message_bytes: int
    bus_bytes: int
    by_size: tuple[tuple[int, int, int], ...] = ()  # (bytes of a message, calls, the shortest)
    communicator: str = ""  # "" where nothing tells it from another of the same description


def collective_totals(trace: Trace) -> tuple[CollectiveTotal, ...]:
    """Communication kernels by what they say of themselves; those that say nothing go by their kernel's
    name.
    """
    gpu = trace.gpu
    rows = rows_named(gpu, codes_where(trace.names, communicates))
    rows = rows[gpu.duration[rows] > 0]
    if len(rows) == 0:
        return ()
    grouped: dict[tuple[str, str, int, str, str], list[int]] = {}
    sizes: dict[tuple[str, str, int, str, str], dict[int, tuple[int, int]]] = {}
    pairs = gpu.collective[rows].astype(np.int64) * len(trace.names) + gpu.name[rows]
    for pair in distinct(pairs).tolist():
        mine = rows[pairs == pair]
        code, kernel = int(gpu.collective[mine[0]]), trace.names[int(gpu.name[mine[0]])]
        said = trace.collectives[code] if code >= 0 else None
        op = plain_op(said.op) if said else _from_kernel(kernel)
        size = said.group_size if said else NO_VALUE
        message = max(said.in_bytes, said.out_bytes, 0) if said else 0
        communicator = (communicator_of(said, trace.origin.world_size) if said else "") or ""
        key = (op, said.group if said else "", size, said.dtype if said else "", communicator)
        durations = gpu.duration[mine]
        total = grouped.setdefault(key, [0, 0, 1 << 62, 0, 0])
        total[0] += len(mine)
        total[1] += int(durations.sum())
        total[2] = min(total[2], int(durations.min()))
        total[3] += message * len(mine)
        total[4] += int(message * len(mine) * _bus_factor(op, size))
        count, least = sizes.setdefault(key, {}).get(message, (0, 1 << 62))
        sizes[key][message] = count + len(mine), min(least, int(durations.min()))
    found = []
    for key, (count, total_ns, least, message, bus) in sorted(grouped.items(), key=lambda kv: -kv[1][1]):
        by_size = tuple((size, calls, shortest) for size, (calls, shortest) in sorted(sizes[key].items()))
        found.append(CollectiveTotal(*key[:4], count, total_ns, least, message, bus, by_size, key[4]))
    return tuple(found)


def plain_op(op: str) -> str:
    """An operation as NCCL calls it: "_all_gather_base" is "allgather"."""
    return (
        op.strip("_").lower().replace("_base", "").replace("_", "").replace("allgatherinto", "allgather")
        or "unknown"
    )


def _from_kernel(kernel: str) -> str:
    lower = kernel.lower()
    for op in ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "sendrecv", "reduce"):
        if op in lower.replace("_", ""):
            return op
    return "allreduce" if "cross_device_reduce" in lower else "unknown"


def _bus_factor(op: str, size: int) -> float:
    if size < 2:
        depends = op.startswith(("allreduce", "allgather", "reducescatter", "alltoall"))
        return 0.0 if size == 1 or depends else 1.0
    if op.startswith("allreduce"):
        return 2 * (size - 1) / size
    if op.startswith(("allgather", "reducescatter", "alltoall")):
        return (size - 1) / size
    return 1.0


def memory_peaks(trace: Trace, segments: tuple[Segment, ...]) -> tuple[MemoryPeak, ...]:
    """Peaks by device and phase, from torch's `[memory]` events or nsys's CUDA memory usage."""
    samples = trace.memory
    if len(samples) == 0:
        return ()
    codes, phases = phase_codes(samples.time, segments)
    peaks = []
    for device in np.unique(samples.device).tolist():
        for code, phase in enumerate(phases):
            mine = (samples.device == device) & (codes == code)
            if mine.any():
                allocated, reserved = samples.allocated_bytes[mine].max(), samples.reserved_bytes[mine].max()
                peaks.append(MemoryPeak(int(device), phase, int(allocated), int(reserved)))
    return tuple(peaks)
