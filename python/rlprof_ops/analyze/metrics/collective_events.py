"""Moments at which ranks meet: collectives by communicator, in order, to align clocks by and to see who
came last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlprof_ops.analyze.columns import Ints, Trace, codes_where
from rlprof_ops.analyze.metrics.gpu import communicates
from rlprof_ops.analyze.metrics.host import meets
from rlprof_ops.analyze.readers.spill import release, rows_named

MAX_MEETINGS = 20_000  # a trace: enough for any fit, small enough to pass between processes
_POINT_TO_POINT = ("send", "recv", "coalesced")


@dataclass(frozen=True)
class CollectiveEvents:
    """All collective events of one kind in one trace: kernels on a GPU where there are any, else ranges on
    the host.
    """

    key: str  # communicator and operation, equal on all ranks that take part
    on_gpu: bool
    start: Ints
    end: Ints
    sequence: Ints  # -1 where the trace does not number them


def find_collective_events(trace: Trace) -> tuple[CollectiveEvents, ...]:
    """The collective events of a trace, in order of time; empty where nothing communicates or each rank is
    alone.
    """
    found = _kernels(trace) or _host(trace)
    release(trace.ranges, trace.ops, trace.gpu)
    budget, kept = MAX_MEETINGS, []
    for meeting in sorted(found, key=lambda m: -len(m.start)):
        if budget <= 0:
            break
        part = slice(0, budget)
        kept.append(
            CollectiveEvents(
                meeting.key, meeting.on_gpu, meeting.start[part], meeting.end[part], meeting.sequence[part]
            )
        )
        budget -= len(meeting.start)
    return tuple(kept)


def _kernels(trace: Trace) -> list[CollectiveEvents]:
    gpu = trace.gpu
    rows = rows_named(gpu, codes_where(trace.names, communicates))
    rows = rows[gpu.collective[rows] >= 0]
    found: dict[tuple[str, str], list[int]] = {}
    for code in np.unique(gpu.collective[rows]).tolist():
        said = trace.collectives[code]
        if said.group_size != 1 and not any(word in said.op.lower() for word in _POINT_TO_POINT):
            found.setdefault((said.group, said.op.strip("_").lower()), []).append(code)
    collective_events = []
    for (group, op), codes in found.items():
        mine = rows[np.isin(gpu.collective[rows], codes)]
        sequences = np.array([c.sequence for c in trace.collectives], np.int64)[gpu.collective[mine]]
        collective_events.append(
            CollectiveEvents(f"{group}/{op}", True, gpu.start[mine], gpu.end[mine], sequences)
        )
    return collective_events


def _host(trace: Trace) -> list[CollectiveEvents]:
    """Outermost host collectives by name. Operators are taken only where no range names the collective."""
    chosen = codes_where(
        trace.names, lambda name: meets(name) and not any(w in name.lower() for w in _POINT_TO_POINT)
    )
    for table in (trace.ranges, trace.ops):
        rows = rows_named(table, chosen)
        if len(rows):
            collective_events = []
            for code in np.unique(table.name[rows]).tolist():
                mine = rows[table.name[rows] == code]
                mine = mine[np.argsort(table.start[mine], kind="stable")]
                none = np.full(len(mine), -1, np.int64)
                collective_events.append(
                    CollectiveEvents(trace.names[code], False, table.start[mine], table.end[mine], none)
                )
            return collective_events
    return []
