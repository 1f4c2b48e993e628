"""Physical GPUs that several processes share: one timeline each, so that idle time is counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlprof_ops.analyze.columns import Trace
from rlprof_ops.analyze.metrics.intervals import Union, merged, union
from rlprof_ops.analyze.readers.spill import BLOCK_ROWS, release
from rlprof_ops.analyze.run.process_summary import Summary

MAX_INTERVALS = 8000  # of a GPU's busy time that a summary carries: 128 kB


@dataclass(frozen=True)
class UsedGpus:
    """The GPUs that a process worked on: UUIDs, and where its reports tell none, numbers as it counts the
    `visible` ones (0: nobody knows how many).
    """

    uuids: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()
    visible: int = 0

    def may_be_of(self, other: UsedGpus) -> bool:
        """Whether nothing tells that two processes of a host used GPUs of their own, or that they shared one.

        Numbers tell GPUs apart where both processes see several, as many as the other; device 0 of two
        processes may be one GPU or two.
        """
        if not (self.numbers or other.numbers) or not all(
            used.numbers or used.uuids for used in (self, other)
        ):
            return False
        numbered = not (self.uuids or other.uuids) and self.visible == other.visible > 1
        return not numbered or bool(self.numbers & other.numbers)


def used_gpus(summaries: Sequence[Summary]) -> UsedGpus:
    """Those of one process: what one of its reports tells of a GPU holds for the others."""
    devices = [device for summary in summaries for device in summary.devices]
    named = {device.device for device in devices if device.uuid}
    return UsedGpus(
        frozenset(plain(device.uuid) for device in devices if device.uuid),
        frozenset(device.device for device in devices) - named,
        max(summary.visible_gpus for summary in summaries),
    )


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
