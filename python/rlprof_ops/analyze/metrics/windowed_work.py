"""What a GPU did in many windows of time at once, from its work a stretch at a time: memory does not grow
with the trace.

Times are sums over disjoint stretches of time, so they may be taken one after the other. A stretch ends where
the GPU is busy, so that no gap is cut in two and every gap is judged with the work that ended it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from rlprof_ops.analyze.columns import Flags, GpuSpans, Ints, Trace, take
from rlprof_ops.analyze.metrics.gpu_time import Host, gpu_unions, idle_causes
from rlprof_ops.analyze.readers.spill import release
from rlprof_ops.analyze.report_model import GpuTimes, IdleSplit

STRETCH_ROWS = 1 << 17
_LOOK_AHEAD = 1024  # rows in which a piece of work is sought that is long enough to end a stretch inside of
_EARLIEST, _LATEST = -(1 << 62), 1 << 62
Window = tuple[int, int]  # [start, end)


class GpuWindows(Struct, frozen=True):
    """One GPU: its whole time, first work to last, and then each window that was asked for."""

    device: int
    start: int
    end: int
    kernels: int
    times: tuple[GpuTimes, ...]
    idle: tuple[IdleSplit, ...]


def gpu_windows(trace: Trace, device: int | None, host: Host, windows: Sequence[Window]) -> GpuWindows:
    """Times of one GPU (None: of all work, as one GPU's) in its whole time and in each of the windows."""
    mine = None if device is None else trace.gpu.device == device
    chosen = np.flatnonzero(mine) if mine is not None and not mine.all() else None
    del mine
    count = len(trace.gpu) if chosen is None else len(chosen)
    first, last = _reach(trace.gpu, chosen, count)
    asked = [(first, last), *windows]
    times = np.zeros((len(asked), len(GpuTimes.__struct_fields__)), np.int64)
    idle = np.zeros((len(asked), len(IdleSplit.__struct_fields__)), np.int64)
    starts, ends = (np.array(bounds, np.int64) for bounds in zip(*asked, strict=True))
    # a step may begin before what the profiler calls its window: idle has a cause there as well
    capture = (
        min(trace.origin.window_start, int(starts.min())),
        max(trace.origin.window_end, int(ends.max())),
    )
    for gpu, begin, until in _stretches(trace.gpu, chosen, count):
        unions = gpu_unions(gpu, trace.names)
        seen_from = max(capture[0], begin)
        causes = idle_causes(gpu, host, unions.busy, seen_from, max(min(capture[1], until), seen_from))
        touched = (starts < until) & (ends > begin) | (begin == _EARLIEST) & (
            starts == ends
        )  # an empty one counts once
        rows = np.flatnonzero(touched)
        low = np.maximum(starts[rows], begin)
        high = np.maximum(np.minimum(ends[rows], until), low)
        times[rows] += unions.table(low, high)
        idle[rows] += causes.table(low, high)
        release(trace.gpu, trace.launches)
    return GpuWindows(
        device or 0,
        first,
        last,
        count,
        tuple(GpuTimes(*row) for row in times.tolist()),
        tuple(IdleSplit(*row) for row in idle.tolist()),
    )


def _reach(gpu: GpuSpans, chosen: Ints | None, count: int) -> Window:
    """First start and last end of the work; (0, 0) where there is none."""
    last = 0
    for low in range(0, count, STRETCH_ROWS):
        index = _index(chosen, low, min(low + STRETCH_ROWS, count))
        last = max(last, int((gpu.start[index] + gpu.duration[index]).max()))
        release(gpu)
    return (int(gpu.start[0 if chosen is None else chosen[0]]), last) if count else (0, 0)


def _index(chosen: Ints | None, low: int, high: int) -> Ints | slice:
    return slice(low, high) if chosen is None else chosen[low:high]


def _stretches(gpu: GpuSpans, chosen: Ints | None, count: int) -> Iterator[tuple[GpuSpans, int, int]]:
    """(work, begin, end) of stretches that follow each other without a gap; work that reaches into several
    is in each.
    """
    begin, low = _EARLIEST, 0
    carried: GpuSpans | None = None
    while True:
        high = min(low + STRETCH_ROWS, count)
        until = _LATEST
        if high < count:
            ahead = _index(chosen, high, min(high + _LOOK_AHEAD, count))
            start, duration = gpu.start[ahead], gpu.duration[ahead]
            inside = np.flatnonzero(duration >= 2)
            pick = int(inside[0]) if len(inside) else 0
            until = int(start[pick]) + 1
            high += int(np.searchsorted(start, until, side="left"))
            if chosen is None:  # more than the look-ahead may begin at once
                high += int(np.searchsorted(gpu.start[high:count], until, side="left"))
            while chosen is not None and high < count and int(gpu.start[chosen[high]]) < until:
                high += 1
        work = take(gpu, _index(chosen, low, high))
        if carried is not None and len(carried):
            work = _joined(carried, work)
        yield work, begin, until
        if until == _LATEST:
            return
        reaching: Flags = work.start + work.duration > until
        carried, begin, low = take(work, reaching), until, high


def _joined(a: GpuSpans, b: GpuSpans) -> GpuSpans:
    return GpuSpans(**{f: np.concatenate((getattr(a, f), getattr(b, f))) for f in GpuSpans.__struct_fields__})
