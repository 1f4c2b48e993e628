"""What a GPU did: computing, communicating, copying or nothing, as AMD TraceLens's `gpu_timeline` defines it.

Source of the definitions: TraceLens, `TreePerf/gpu_event_analyser.py` and `util.py` (git, 2026), read and
restated: compute is the union of kernels and memsets that do not communicate; communication that of kernels
whose name says nccl, rccl or cross_device_reduce; memcpy that of copies; exposed communication is what of it
no compute hides, exposed memcpy what neither hides; idle is the window less the union of all. So compute +
exposed communication + exposed memcpy + idle is the window, to the nanosecond. The window is first start to
last end of the GPU's work unless another is given.

HolisticTraceAnalysis differs by design: it rounds starts up and ends down to whole microseconds before it
takes unions, which turns short kernels into nothing and their time into idle, and it drops the last
ProfilerStep.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from rlprof_ops.analyze.columns import (
    KERNEL,
    MEMCPY,
    Flags,
    GpuSpans,
    Ints,
    Launches,
    LaunchIndex,
    Trace,
    codes_where,
)
from rlprof_ops.analyze.kernel_names import communicates, copies
from rlprof_ops.analyze.metrics.intervals import Union, common, merged, union, without
from rlprof_ops.analyze.readers.spill import rows_named
from rlprof_ops.analyze.report_model import GpuTimes, IdleSplit

_SYNCHRONISES = re.compile(
    r"(Device|Stream|Event|Context|Ctx)_?Synchronize|StreamWaitValue|cuMemHostRegister", re.IGNORECASE
)


def synchronises(name: str) -> bool:
    return _SYNCHRONISES.search(name) is not None


class GpuUnions(Struct, frozen=True):
    """The unions that every window's times are read from."""

    compute: Union
    communication: Union
    memcpy: Union
    compute_or_communication: Union
    busy: Union
    start: int
    end: int

    def times(self, start: int, end: int) -> GpuTimes:
        """The GPU's times in the window [start, end)."""
        return GpuTimes(*self.table(np.array([start]), np.array([end]))[0].tolist())

    def table(self, start: Ints, end: Ints) -> Ints:
        """(k, 8) the fields of `GpuTimes` in each of k windows."""
        compute = self.compute.within(start, end)
        hidden = self.compute_or_communication.within(start, end)
        busy = self.busy.within(start, end)
        communication, memcpy = self.communication.within(start, end), self.memcpy.within(start, end)
        window = end - start
        columns = window, compute, communication, hidden - compute, memcpy, busy - hidden, busy, window - busy
        return np.stack(columns, axis=1)

    def whole(self) -> GpuTimes:
        return self.times(self.start, self.end)


def gpu_unions(gpu: GpuSpans, names: tuple[str, ...]) -> GpuUnions:
    """Unions of some work of one GPU; `names` is the dictionary of its trace."""
    communicating = codes_where(names, communicates)[gpu.name] & (gpu.kind != MEMCPY)
    copying = (gpu.kind == MEMCPY) | (codes_where(names, copies)[gpu.name] & (gpu.kind == KERNEL))
    communicating &= ~copying
    end = gpu.end
    compute = _of(gpu.start, end, ~(communicating | copying))
    communication = _of(gpu.start, end, communicating)
    memcpy = _of(gpu.start, end, copying)
    hidden = merged(compute, communication)
    return GpuUnions(
        compute, communication, memcpy, hidden, merged(hidden, memcpy),
        start=int(gpu.start.min()) if len(gpu) else 0, end=int(end.max()) if len(gpu) else 0,
    )  # fmt: skip


def _of(start: Ints, end: Ints, rows: Flags) -> Union:
    return union(start[rows], end[rows])


def sum_gpu(times: list[GpuTimes]) -> GpuTimes | None:
    if len(times) < 2:
        return times[0] if times else None
    return GpuTimes(*map(sum, zip(*map(astuple, times), strict=True)))


def sum_idle(splits: list[IdleSplit]) -> IdleSplit | None:
    if len(splits) < 2:
        return splits[0] if splits else None
    return IdleSplit(*map(sum, zip(*map(astuple, splits), strict=True)))


class IdleCauses(Struct, frozen=True):
    """The idle time of a GPU in [start, end), what `busy` leaves free, as disjoint unions by cause."""

    busy: Union
    start: int
    end: int
    queued: Union
    synchronising: Union
    waiting: Union

    def table(self, start: Ints, end: Ints) -> Ints:
        """(k, 4) the fields of `IdleSplit` in each of k windows."""
        first = np.maximum(start, self.start)
        last = np.maximum(np.minimum(end, self.end), first)
        idle = last - first - self.busy.within(first, last)
        parts = [u.within(start, end) for u in (self.queued, self.synchronising, self.waiting)]
        return np.stack([*parts, idle - parts[0] - parts[1] - parts[2]], axis=1)


class Host(Struct, frozen=True):
    """What the host side of a trace says of the gaps on its GPUs: made once a trace."""

    launches: LaunchIndex
    calls: Launches
    synchronising: Union
    in_phase: Union | None  # when the process was in a phase; None: always


def host_of(trace: Trace, in_phase: Union | None) -> Host:
    rows = rows_named(trace.launches, codes_where(trace.names, synchronises))
    start = trace.launches.start[rows]
    calls = union(start, start + trace.launches.duration[rows])
    return Host(trace.launches.index, trace.launches, calls, in_phase)


def idle_causes(gpu: GpuSpans, host: Host, busy: Union, start: int, end: int) -> IdleCauses:
    """Splits the gaps of `busy` in [start, end) by cause; `gpu` is the work of one GPU in order of its
    start. From when the work that ends a gap had been launched, the gap is no longer the host's.
    """
    gaps = busy.gaps(start, end)
    order = np.searchsorted(gpu.start, gaps.end, side="left")  # the first work at or after the gap's end
    ended = order < len(gpu)
    next_row = np.minimum(order, max(len(gpu) - 1, 0))
    row = host.launches.rows(gpu.correlation[next_row]) if len(gpu) else np.full(len(gaps), -1)
    known = ended & (row >= 0)
    queued_from = gaps.end.copy()
    if known.any():
        returned = host.calls.start[row[known]] + host.calls.duration[row[known]]
        queued_from[known] = np.clip(returned, gaps.start[known], gaps.end[known])
    queued, late = union(queued_from, gaps.end), union(gaps.start, queued_from)
    synchronising = common(late, host.synchronising)
    rest = without(late, synchronising)
    nothing = union(np.empty(0, np.int64), np.empty(0, np.int64))
    waiting = nothing if host.in_phase is None else without(rest, host.in_phase)
    return IdleCauses(busy, start, end, queued, synchronising, waiting)
