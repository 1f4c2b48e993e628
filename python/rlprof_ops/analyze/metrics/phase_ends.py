"""When a phase is over on the GPU: engines launch a pass and go on (vLLM's asynchronous scheduling), so the
range of a phase may end long before its work does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from rlprof_ops.analyze.columns import Ints, Trace
from rlprof_ops.analyze.metrics.kernels import launch_moments
from rlprof_ops.analyze.metrics.phases import Segment, Step
from rlprof_ops.analyze.metrics.windowed_work import STRETCH_ROWS


def until_done(trace: Trace, segments: tuple[Segment, ...], steps: Sequence[Step]) -> tuple[Segment, ...]:
    """The segments, each until the GPU work that was launched in it is done, the next one begins or its step
    ends, whichever is first.
    """
    if not segments or len(trace.gpu) == 0:
        return segments
    order = sorted(range(len(segments)), key=lambda number: segments[number].start)
    starts, ends = (
        np.array([getattr(segments[number], bound) for number in order], np.int64)
        for bound in ("start", "end")
    )
    done = _last_work(trace, starts, ends)
    over = {step.step: step.end for step in steps}
    limit = np.array([over[segments[number].step] for number in order], np.int64)
    following = np.searchsorted(starts, ends, side="left")
    limit = np.minimum(limit, np.append(starts, np.iinfo(np.int64).max)[following])
    until = np.maximum(ends, np.minimum(done, limit))
    found = list(segments)
    for place in np.flatnonzero(until > ends).tolist():
        found[order[place]] = replace(segments[order[place]], end=int(until[place]))
    return tuple(found)


def _last_work(trace: Trace, starts: Ints, ends: Ints) -> Ints:
    """(n,) when the work is done that was launched in each of n segments, in order of their start."""
    done = np.full(len(starts), np.iinfo(np.int64).min)
    asked_for = launch_moments(trace)
    for first in range(0, len(trace.gpu), STRETCH_ROWS):
        rows = slice(first, first + STRETCH_ROWS)
        moment, end = asked_for(rows), trace.gpu.start[rows] + trace.gpu.duration[rows]
        place = np.searchsorted(starts, moment, side="right") - 1
        mine = (place >= 0) & (moment < ends[np.maximum(place, 0)])
        np.maximum.at(done, place[mine], end[mine])
    return done
