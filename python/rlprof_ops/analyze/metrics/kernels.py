"""Which kernels and operators a phase's time goes to, and what communication moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlprof_ops.analyze.columns import NO_VALUE, Codes, Ints, Trace, codes_where
from rlprof_ops.analyze.metrics.gpu import communicates, launch_index
from rlprof_ops.analyze.metrics.phases import Segment

NO_PHASE = ""
TOP = 40


@dataclass(frozen=True)
class NameTotal:
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


def kernel_moments(trace: Trace) -> Ints:
    """(n,) when each piece of GPU work was asked for: its launch's start, or its own start when no launch is known.

    The launch decides the phase, for a kernel may run long after the host has gone on to the next phase.
    """
    launched = launch_index(trace.launches, trace.gpu.correlation)
    own = trace.gpu.start
    if len(trace.launches) == 0:
        return own
    return np.where(launched >= 0, trace.launches.start[np.maximum(launched, 0)], own)


def totals(name: Codes, duration: Ints, phase: npt.NDArray[np.int32], names: tuple[str, ...], phases: tuple[str, ...]) -> tuple[NameTotal, ...]:
    """Count, sum and maximum by (phase, name); the `TOP` longest of each phase, the others as one line "(others)"."""
    if len(name) == 0:
        return ()
    key = phase.astype(np.int64) * len(names) + name
    count = np.bincount(key)
    used = np.flatnonzero(count)
    total = np.zeros(len(count), np.int64)
    order = np.argsort(key, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(count[used])[:-1]))
    ordered = duration[order]
    total[used] = np.add.reduceat(ordered, bounds)
    longest = np.maximum.reduceat(ordered, bounds)
    rows: list[NameTotal] = []
    for code, phase_name in enumerate(phases):
        mine = np.flatnonzero(used // len(names) == code)
        ranked = mine[np.argsort(-total[used[mine]], kind="stable")]
        for i in ranked[:TOP]:
            k = int(used[i])
            rows.append(NameTotal(phase_name, names[k % len(names)], int(count[k]), int(total[k]), int(longest[i])))
        rest = ranked[TOP:]
        if len(rest):
            keys = used[rest]
            rows.append(
                NameTotal(phase_name, "(others)", int(count[keys].sum()), int(total[keys].sum()), int(longest[rest].max()))
            )
    return tuple(rows)


def top_kernels(trace: Trace, segments: tuple[Segment, ...]) -> tuple[NameTotal, ...]:
    """GPU work by phase and name; the phase is where its launch was called."""
    phase, phases = phase_codes(kernel_moments(trace), segments)
    return totals(trace.gpu.name, trace.gpu.duration, phase, trace.names, phases)


def top_ops(trace: Trace, segments: tuple[Segment, ...]) -> tuple[NameTotal, ...]:
    """Framework operators by phase and name, host time, nested operators counted in both."""
    phase, phases = phase_codes(trace.ops.start, segments)
    return totals(trace.ops.name, trace.ops.duration, phase, trace.names, phases)


@dataclass(frozen=True)
class CollectiveTotal:
    """All calls of one collective on one communicator in one trace.

    `bus_bytes` is what the ring or tree must move a rank, by NCCL's rule (nccl-tests, doc/PERFORMANCE.md): all-reduce
    2(n-1)/n, all-gather, reduce-scatter and all-to-all (n-1)/n of the larger buffer, the others 1. 0 where sizes are unknown.
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


def collective_totals(trace: Trace) -> tuple[CollectiveTotal, ...]:
    """Communication kernels by what they say of themselves; those that say nothing go by their kernel's name."""
    gpu = trace.gpu
    talking = codes_where(trace.names, communicates)[gpu.name] & (gpu.duration > 0)
    rows = np.flatnonzero(talking)
    if len(rows) == 0:
        return ()
    grouped: dict[tuple[str, str, int, str], list[int]] = {}
    pairs = gpu.collective[rows].astype(np.int64) * len(trace.names) + gpu.name[rows]
    for pair in np.unique(pairs).tolist():
        mine = rows[pairs == pair]
        code, kernel = int(gpu.collective[mine[0]]), trace.names[int(gpu.name[mine[0]])]
        said = trace.collectives[code] if code >= 0 else None
        op = _plain(said.op) if said else _from_kernel(kernel)
        size = said.group_size if said else NO_VALUE
        message = max(said.in_bytes, said.out_bytes, 0) if said else 0
        key = (op, said.group if said else "", size, said.dtype if said else "")
        durations = gpu.duration[mine]
        total = grouped.setdefault(key, [0, 0, 1 << 62, 0, 0])
        total[0] += len(mine)
        total[1] += int(durations.sum())
        total[2] = min(total[2], int(durations.min()))
        total[3] += message * len(mine)
        total[4] += int(message * len(mine) * _bus_factor(op, size))
    return tuple(CollectiveTotal(*key, *values) for key, values in sorted(grouped.items(), key=lambda kv: -kv[1][1]))


def _plain(op: str) -> str:
    return op.strip("_").lower().replace("_base", "").replace("_", "").replace("allgatherinto", "allgather") or "unknown"


def _from_kernel(kernel: str) -> str:
    lower = kernel.lower()
    for op in ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "sendrecv", "reduce"):
        if op in lower.replace("_", ""):
            return op
    return "allreduce" if "cross_device_reduce" in lower else "unknown"


def _bus_factor(op: str, size: int) -> float:
    if size < 2:
        return 0.0 if size == 1 else 1.0
    if op.startswith("allreduce"):
        return 2 * (size - 1) / size
    if op.startswith(("allgather", "reducescatter", "alltoall")):
        return (size - 1) / size
    return 1.0
