"""The longest pieces of GPU work of every step, one by one: what the chart can be zoomed to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from rlprof_ops.analyze.columns import Codes, Ints, Trace, distinct

MOST = 200  # of a step


class LongKernels(Struct, frozen=True):
    """Kernels and copies in order of their begin; `name` codes into `names`. Columns, so that they pass
    between processes at no cost.
    """

    names: tuple[str, ...]
    name: Codes
    start: Ints
    duration: Ints

    def __len__(self) -> int:
        return len(self.start)


def no_kernels() -> LongKernels:
    return LongKernels((), np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))


def longest_kernels(trace: Trace, windows: Sequence[tuple[int, int]]) -> LongKernels:
    """The `MOST` longest that began in each of some stretches of time."""
    start, parts = trace.gpu.start, []
    for begin, end in windows:
        first, last = np.searchsorted(start, (begin, end)).tolist()
        inside = trace.gpu.duration[first:last]
        most = np.argpartition(-inside, MOST - 1)[:MOST] if len(inside) > MOST else np.arange(len(inside))
        parts.append(first + most)
    rows = distinct(np.concatenate(parts)) if parts else np.empty(0, np.int64)
    if not len(rows):
        return no_kernels()
    used = distinct(trace.gpu.name[rows])
    name = np.searchsorted(used, trace.gpu.name[rows])
    names = tuple(trace.names[code] for code in used.tolist())
    return LongKernels(names, name.astype(np.int32), start[rows].copy(), trace.gpu.duration[rows].copy())
