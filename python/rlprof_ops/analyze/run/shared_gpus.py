"""Physical GPUs that several processes share: one timeline each, so that idle time is counted once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlprof_ops.analyze.columns import Trace
from rlprof_ops.analyze.metrics.intervals import Union, merged, union
from rlprof_ops.analyze.readers.spill import BLOCK_ROWS, release

if TYPE_CHECKING:
    from rlprof_ops.analyze.run.merge import Rank
    from rlprof_ops.analyze.run.summary import DeviceTimes

MAX_INTERVALS = 8000  # of a GPU's busy time that a summary carries: 128 kB


def plain(uuid: str) -> str:
    """A UUID as every tool's is: nvidia-smi writes "GPU-" before it, CUDA does not."""
    return uuid.removeprefix("GPU-").lower()


@dataclass(frozen=True)
class SharedGpu:
    """One GPU over the captures of all processes that used it; busy + idle = window.

    `doubt_ns`: what busy may be wrong by, for a process with more than `MAX_INTERVALS` stretches of work has
    the shortest gaps between them closed.
    """

    uuid: str
    name: str
    host: str
    ranks: tuple[Rank, ...]
    start: int
    window_ns: int
    busy_ns: int
    idle_ns: int
    doubt_ns: int


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


def shared_gpus(devices: Mapping[Rank, Sequence[DeviceTimes]]) -> tuple[SharedGpu, ...]:
    """Every GPU that at least two processes used, by its UUID."""
    users: dict[str, list[tuple[Rank, DeviceTimes]]] = {}
    for rank, used in devices.items():
        for device in used:
            if device.uuid and device.busy is not None:
                users.setdefault(plain(device.uuid), []).append((rank, device))
    found = []
    for _, uses in sorted(users.items()):
        uuid = uses[0][1].uuid
        ranks = tuple(sorted({rank for rank, _ in uses}))
        if len(ranks) < 2:
            continue
        start, end = min(d.start for _, d in uses), max(d.end for _, d in uses)
        together = merged(*(d.busy for _, d in uses if d.busy is not None)).length
        doubt = sum(d.busy.length - d.times.busy_ns for _, d in uses if d.busy is not None)
        busy = max(together - doubt, max(d.times.busy_ns for _, d in uses))
        name, host = next((d.name for _, d in uses if d.name), ""), ranks[0].host
        window = end - start
        found.append(SharedGpu(uuid, name, host, ranks, start, window, busy, window - busy, doubt))
    return tuple(found)
