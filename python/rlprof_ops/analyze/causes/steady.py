"""Loops whose steps overlap, as those of asynchronous training: what a change takes off the time from step to
step.

Work waits for work of several steps ago there (weights that may be k steps old), and a step's own length
tells nothing. So the captured steps are repeated, one run of them after the other, until how the loop begins
and ends counts little. Each piece waits for what ended before it in every captured step, at most four steps
ago.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from rlprof_ops.analyze.causes.activities import Activity
from rlprof_ops.analyze.causes.dependencies import (
    MAX_APART,
    StepGraph,
    consecutive,
    relations,
    untold,
    window_of,
)
from rlprof_ops.analyze.run.merge import Merged
from rlprof_ops.words import duration

MIN_STEPS = 10  # in a row: of fewer, one run joins to the next too badly for its noise
LENGTH = 48  # steps, repeated ones and all
MAX_UNEXPLAINED = 0.05  # of the time from step to step, before a phase begins


def steady(merged: Merged) -> list[StepGraph]:
    """The longest run of consecutive steps, repeated; none where too little of the waiting is explained."""
    runs = [] if untold(merged) or not merged.periods else consecutive(merged)
    if not runs:
        return []
    part = max(runs, key=lambda run: len({a.step for a in run}))
    numbers = sorted({a.step for a in part})
    if len(numbers) < MIN_STEPS:
        return []
    ends = [merged.periods[n][1] for n in (numbers[0], numbers[-1])]
    period_ns = (ends[1] - ends[0]) / (len(numbers) - 1)
    related = relations([part], merged.clocks.residual_ns or 0, MAX_APART)
    times = -(-LENGTH // len(numbers))
    repeated = [
        a for time in range(times) for a in _later(part, time * len(numbers), len(numbers) * period_ns * time)
    ]
    repeated.sort(key=lambda a: (a.start, a.end, a.rank))
    try:
        window = window_of(repeated, related, {}, repeated[0].start, times * len(numbers), meet=True)
    except ValueError:  # times that contradict each other
        return []
    return [window] if _unexplained(window) <= MAX_UNEXPLAINED * period_ns else []


def why_no_chain(merged: Merged, replayed: bool) -> str:
    """As `untold`, and of steps that overlap."""
    if not merged.periods:
        return untold(merged)
    took = duration(fmean(end - start for start, end in merged.periods.values()))
    text = (
        f"Steps overlap: the next one begins before a step has ended. One ends every {took}, and no chain of"
        " work inside a step decides that."
    )
    if replayed:
        return text
    return (
        f"{text} No change is replayed: that takes {MIN_STEPS} captured steps in a row, and reports that show"
        " what each phase waits for."
    )


def _later(part: Sequence[Activity], steps: int, ns: float) -> list[Activity]:
    return [
        replace(
            a,
            step=a.step + steps,
            start=a.start + round(ns),
            end=a.end + round(ns),
            meetings=tuple(
                m._replace(arrival=m.arrival + round(ns), release=m.release + round(ns)) for m in a.meetings
            ),
        )
        for a in part
    ]


def _unexplained(window: StepGraph) -> float:
    """The mean time before a phase in which nothing ran that it is known to wait for, of the worst phase."""
    lags: dict[tuple[str, str], list[int]] = defaultdict(list)
    for lag, piece in zip(window.graph.lag, window.pieces, strict=True):
        if piece is not None and piece.number == 0:
            lags[piece.activity.rank.role, piece.activity.phase].append(abs(lag))
    return max(fmean(each) for each in lags.values())
