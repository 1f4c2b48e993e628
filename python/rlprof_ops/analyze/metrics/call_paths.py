"""Operators by what they were called inside of: the host's time of every path of operators."""

from __future__ import annotations

import numpy as np

from rlprof_ops.analyze.columns import Coder, Trace, distinct, take
from rlprof_ops.analyze.metrics.kernels import NameTotal, totals
from rlprof_ops.analyze.metrics.phases import Segment
from rlprof_ops.analyze.readers.spill import release

INSIDE = " → "
MOST_PATHS = 300  # of a trace, and of a report: those that take longest
MOST_OPS = 1 << 20  # of a trace, the first ones
_DEEPEST = 24


def call_paths(trace: Trace, segments: tuple[Segment, ...]) -> tuple[NameTotal, ...]:
    """The paths of operators, "linear → addmm", from the outermost on, each thread nested by itself; those
    that take the host longest first.
    """
    ops, known = take(trace.ops, slice(MOST_OPS)), Coder[int]()
    path, around = np.full(len(ops), -1, np.int32), np.zeros(len(ops), np.int64)  # around: code of a path + 1
    for track in distinct(ops.track).tolist():
        rows = np.flatnonzero(ops.track == track)
        rows = rows[np.lexsort((-ops.duration[rows], ops.start[rows]))]
        for _ in range(_DEEPEST):
            ends = np.maximum.accumulate(ops.end[rows])
            outer = np.concatenate(([True], ops.start[rows][1:] >= ends[:-1]))[: len(rows)]
            keys = around[rows[outer]] * len(trace.names) + ops.name[rows[outer]]
            some = distinct(keys)
            path[rows[outer]] = known.encode(some.tolist())[np.searchsorted(some, keys)]
            around[rows] = path[rows[outer]][np.cumsum(outer) - 1] + 1
            rows = rows[~outer]
            if not len(rows):
                break
    texts = [""]
    for key in known.values():
        name = trace.names[key % len(trace.names)].removeprefix("aten::")
        texts.append(INSIDE.join(filter(None, (texts[key // len(trace.names)], name))))
    release(trace.ops)
    mine = np.flatnonzero(path >= 0)
    began, lasted = ops.start[mine], ops.duration[mine]
    found = totals(path[mine], lasted, lambda part: began[part], tuple(texts[1:]), segments)
    return tuple(sorted(found, key=lambda row: -row.total_ns)[:MOST_PATHS])
