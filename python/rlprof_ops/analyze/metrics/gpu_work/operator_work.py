"""The GPU time of operators whose work their shapes tell: of the work that was launched inside of them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rlprof_ops.analyze.columns import Trace, distinct
from rlprof_ops.analyze.metrics.gpu_work.launching import Launched
from rlprof_ops.analyze.metrics.kernels import phase_codes
from rlprof_ops.analyze.metrics.phases import Segment
from rlprof_ops.analyze.operator_flops import Work, work_of

MOST_ROWS = 500  # of a trace, those that take longest


class OperatorTotal(Struct, frozen=True):
    """All calls of one operator that do the same, in one phase of one trace; those that launched nothing, or
    only a graph that holds others, are not in it.
    """

    phase: str
    name: str
    work: Work
    count: int
    total_ns: int


def operator_totals(
    trace: Trace, calls: Launched, segments: tuple[Segment, ...]
) -> tuple[OperatorTotal, ...]:
    """Operators by phase, name and shapes, the most GPU time first. A launch is of the outermost operator
    that is counted.
    """
    ops, spent = trace.shaped, np.zeros(len(trace.shaped), np.int64)
    order = np.lexsort((-ops.duration, ops.start))
    launched, thread = trace.launches.start[calls.row], trace.launches.track[calls.row]
    for track in distinct(ops.track).tolist():
        mine = order[ops.track[order] == track]
        begins, ends = ops.start[mine], np.maximum.accumulate(ops.end[mine])
        outer = mine[np.concatenate(([True], begins[1:] >= ends[:-1]))]
        here = np.flatnonzero(thread == track)
        place = np.searchsorted(ops.start[outer], launched[here], side="right") - 1
        inside = (place >= 0) & (launched[here] < ops.end[outer][np.maximum(place, 0)])
        np.add.at(spent, outer[place[inside]], calls.work[here[inside]])
    rows = np.flatnonzero(spent)
    phase, phases = phase_codes(ops.start[rows], segments)
    keys = (phase.astype(np.int64) * len(trace.names) + ops.name[rows]) * len(trace.shapes) + ops.shape[rows]
    found = []
    for key in distinct(keys).tolist():
        mine, rest = rows[keys == key], key // len(trace.shapes)
        name = trace.names[rest % len(trace.names)]
        work = work_of(name, trace.shapes[key % len(trace.shapes)])
        if work is not None:
            label = phases[rest // len(trace.names)]
            found.append(OperatorTotal(label, name, work, len(mine), int(spent[mine].sum())))
    return tuple(sorted(found, key=lambda row: -row.total_ns)[:MOST_ROWS])
