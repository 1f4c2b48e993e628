"""Physical GPUs that several processes share: one timeline each, so that idle time is counted once."""

from __future__ import annotations

import numpy as np

from rlprof_ops.analyze.columns import Trace
from rlprof_ops.analyze.metrics.intervals import Union, merged, union
from rlprof_ops.analyze.readers.spill import BLOCK_ROWS, release

MAX_INTERVALS = 8000  # of a GPU's busy time that a summary carries: 128 kB


def plain(uuid: str) -> str:
    """A UUID as every tool's is: nvidia-smi writes "GPU-" before it, CUDA does not."""
    return uuid.removeprefix("GPU-").lower()


def busy_of(trace: Trace, device: int) -> Union:
    """When one GPU was busy, in at most `MAX_INTERVALS` stretches: beyond, the shortest gaps are closed."""
    parts = []
    for first in range(0, len(trace.gpu), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        mine = trace.gpu.device[rows] == device
        start = trace.gpu.start[rows][mine]
        parts.append(union(start, start + trace.gpu.duration[rows][mine]))
        release(trace.gpu)
    busy = merged(*parts)
    if len(busy) <= MAX_INTERVALS:
        return busy
    gaps = busy.start[1:] - busy.end[:-1]
    kept = np.sort(np.argpartition(gaps, -(MAX_INTERVALS - 1))[-(MAX_INTERVALS - 1) :])
    return union(
        np.concatenate((busy.start[:1], busy.start[1:][kept])),
        np.concatenate((busy.end[kept], busy.end[-1:])),
    )
