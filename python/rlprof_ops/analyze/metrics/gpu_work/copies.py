"""Copies by direction and phase: how much was moved, and how fast."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from rlprof_ops.analyze.columns import MEMCPY, Trace, distinct
from rlprof_ops.analyze.kernel_names import copies
from rlprof_ops.analyze.metrics.kernels import launch_moments, phase_codes
from rlprof_ops.analyze.metrics.phases import Segment

_DIRECTION = re.compile(
    r"(HtoD|DtoH|DtoD|HtoH|PtoP|Peer|HtoA|AtoH)|(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE)"
)
_PLAIN = {"HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD", "Peer": "PtoP"}


class CopyTotal(Struct, frozen=True):
    """All copies of one direction in one phase of one trace.

    `known_ns` is the time of those whose size is known, `known_bytes` what they moved: the rate is of these.
    """

    phase: str
    direction: str  # "HtoD", "DtoH", "DtoD", "PtoP" or "unknown"
    count: int
    total_ns: int
    known_bytes: int
    known_ns: int


def direction(name: str) -> str:
    """The direction of a copy by its name."""
    found = _DIRECTION.search(name)
    return _PLAIN.get(found.group(), found.group()) if found else "unknown"


def copy_totals(trace: Trace, segments: tuple[Segment, ...]) -> tuple[CopyTotal, ...]:
    """Copies by the phase in which they were asked for, and by direction; the longest first."""
    gpu = trace.gpu
    named = np.array([copies(name) for name in trace.names], np.bool_)
    rows = np.flatnonzero((gpu.kind == MEMCPY) | named[gpu.name]) if len(gpu) else np.empty(0, np.int64)
    if len(rows) == 0:
        return ()
    phases, labels = phase_codes(launch_moments(trace)(rows), segments)
    used = distinct(gpu.name[rows])
    directions = sorted({direction(trace.names[code]) for code in used.tolist()})
    of_name = np.zeros(len(trace.names), np.int64)
    of_name[used] = [directions.index(direction(trace.names[code])) for code in used.tolist()]
    kinds = of_name[gpu.name[rows]]
    found = []
    for key in distinct(phases.astype(np.int64) * len(directions) + kinds).tolist():
        phase, kind = divmod(key, len(directions))
        mine = rows[(phases == phase) & (kinds == kind)]
        duration, size = gpu.duration[mine], gpu.size_bytes[mine]
        known = (size > 0) & (duration > 0)
        found.append(
            CopyTotal(
                labels[phase],
                directions[kind],
                len(mine),
                int(duration.sum()),
                int(size[known].sum()),
                int(duration[known].sum()),
            )
        )
    return tuple(sorted(found, key=lambda copy: -copy.total_ns))
