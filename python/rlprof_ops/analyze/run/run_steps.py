"""One step of the run: every rank's step is put on the same stretch of time, so that shares have one
denominator and time before or after a rank's own part of a step is time in no phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from rlprof_ops.analyze.metrics.intervals import union

if TYPE_CHECKING:
    from rlprof_ops.analyze.run.merge import RankStep

# Marks of one step that cover less of the time from the first to the last are not one step: numbers that
# happen to be equal, windows taken apart.
MIN_COVERED = 0.5
MIN_OVERLAP = 0.1  # of the time from step to step, from which on steps overlap
SYNC = "weight_sync"  # the marks of a step may cut it off, into the next step
Group = tuple[str, int]  # clock, step


def on_steps_of_the_run(rows: list[RankStep], clock_of: Callable[[str], str]) -> list[RankStep]:
    """The rows with the step of the run as their start and end. `clock_of`: host -> a name that hosts with
    aligned clocks share; hosts whose clocks are not known to each other are left as they are.

    An actor that opens its own step in each call (bare Ray) marks its part of a step only; the step of the
    run goes from the first part to the last, or is what the controller marks. A rank's steps stay apart:
    where generation of step 5 runs beside training of step 4, its step 4 ends where its step 5 begins. Where
    steps overlap throughout, each rank's step goes from its own begin to the begin of its next.
    """
    marked: dict[int, list[RankStep]] = {}
    for row in rows:
        if row.marked:
            marked.setdefault(row.step, []).append(row)
    longer = [_as_long_as_others(row, marked.get(row.step, ()), clock_of) for row in rows]
    rows = _opened_together(longer, clock_of)
    rows = _cut_alike(rows, clock_of)
    apart = overlapping(rows, clock_of)
    whole = {} if apart else _whole_steps(rows, clock_of)
    mine: dict[object, list[RankStep]] = {}
    for row in rows:
        mine.setdefault(row.rank, []).append(row)
    found = []
    for own in mine.values():
        own.sort(key=lambda row: row.start)
        ended = None
        for i, row in enumerate(own):
            start, end = row.start, row.end
            span = whole.get((clock_of(row.rank.host), row.step))
            if span and row.marked:
                start = min(start, span[0] if ended is None else max(span[0], ended))
                end = max(end, span[1] if i + 1 == len(own) else min(span[1], own[i + 1].start))
            if apart and i + 1 < len(own) and own[i + 1].step == row.step + (row.count or 1):
                end = max(end, own[i + 1].start)
            ended = max(end, ended or end)
            found.append(replace(row, start=start, end=end))
    return found


def overlapping(rows: Sequence[RankStep], clock_of: Callable[[str], str]) -> bool:
    """Whether work of the next step is under way before that of a step has ended, in most steps and for more
    than a moment: asynchronous training.
    """
    spans: dict[Group, tuple[int, int]] = {}
    for row in rows:
        phases = [phase.when for phase in row.phases if phase.phase != SYNC and len(phase.when)]
        if phases and row.marked and not row.rank.is_controller:
            key = (clock_of(row.rank.host), row.step)
            start, end = min(int(when.start[0]) for when in phases), max(int(when.end[-1]) for when in phases)
            low, high = spans.get(key, (start, end))
            spans[key] = (min(low, start), max(high, end))
    pairs = [(spans[c, n], spans[c, n + 1]) for c, n in spans if (c, n + 1) in spans]
    if not pairs:
        return False
    late, period = (
        median(values) for values in zip(*((a[1] - b[0], b[1] - a[1]) for a, b in pairs), strict=True)
    )
    return bool(late > MIN_OVERLAP * max(period, 1))


def steps_from_end_to_end(
    rows: Iterable[RankStep], clock_of: Callable[[str], str]
) -> dict[int, tuple[int, int]]:
    """Steps that overlap, each from the end of the one before to its own: then they add up to the time that
    the run takes. Where the one before was not captured, a step is as long as the others are in the mean. Of
    a step that was seen on several clocks, that with the most steps tells.
    """
    ends: dict[str, dict[int, int]] = {}
    for row in rows:
        on_clock = ends.setdefault(clock_of(row.rank.host), {})
        for phase in row.phases:
            on_clock[row.step] = max(on_clock.get(row.step, 0), int(phase.when.end[-1]))
    periods: dict[int, tuple[int, int]] = {}
    for each in sorted(ends.values(), key=len):
        took = {n: each[n] - each[n - 1] for n in each if n - 1 in each and each[n] > each[n - 1]}
        usual = round(fmean(took.values())) if took else 0
        periods |= {n: (end - took.get(n, usual), end) for n, end in each.items()}
    return periods


def _whole_steps(rows: Iterable[RankStep], clock_of: Callable[[str], str]) -> dict[Group, tuple[int, int]]:
    groups: dict[Group, list[RankStep]] = {}
    for row in rows:
        if row.marked:
            groups.setdefault((clock_of(row.rank.host), row.step), []).append(row)
    whole = {}
    for key, group in groups.items():
        marks = [row for row in group if row.rank.is_controller] or group
        start, end = min(row.start for row in marks), max(row.end for row in marks)
        covered = union(
            np.array([row.start for row in group], np.int64), np.array([row.end for row in group], np.int64)
        )
        if covered.inside(start, end) >= MIN_COVERED * (end - start):
            whole[key] = (start, end)
    return whole


def _opened_together(rows: list[RankStep], clock_of: Callable[[str], str]) -> list[RankStep]:
    """Steps without the time that the profilers took to open.

    A window opens rank by rank, for seconds with some profilers, and the training step proper begins when the
    last rank is in it or when a first phase begins, whichever is earlier.
    """
    marked: dict[Group, list[RankStep]] = {}
    for row in rows:
        if row.marked:
            marked.setdefault((clock_of(row.rank.host), row.step), []).append(row)
    begin = {}
    for key, group in marked.items():
        phases = [int(phase.when.start[0]) for row in group for phase in row.phases if len(phase.when)]
        if phases:
            begin[key] = min(max(row.start for row in group), min(phases))
    cut = []
    for row in rows:
        late = begin.get((clock_of(row.rank.host), row.step), row.start) - row.start
        can = row.marked and row.gpu is None and 0 < late < row.duration_ns
        cut.append(replace(row, start=row.start + late, opening_ns=late) if can else row)
    return cut


def _cut_alike(rows: list[RankStep], clock_of: Callable[[str], str]) -> list[RankStep]:
    """Steps that nothing marks, which each process was cut into at its own first phase, with one cut for the
    run: at the first process's. Where a phase goes on beyond it (asynchronous loops), each keeps its own.
    """
    loops: dict[tuple[str, object], dict[int, RankStep]] = {}
    for row in rows:
        if not row.marked and row.count == 1 and row.phases:
            loops.setdefault((clock_of(row.rank.host), row.rank), {})[row.step] = row
    cuts: dict[Group, int] = {}
    for (clock, _), mine in loops.items():
        for step, row in mine.items():
            if step - 1 in mine:
                cuts[clock, step] = min(row.start, cuts.get((clock, step), row.start))
    for (clock, _), mine in loops.items():
        for step, row in mine.items():
            goes_on = max(
                (int(part.when.end[-1]) for part in row.phases if len(part.when)), default=row.start
            )
            if (
                goes_on > cuts.get((clock, step + 1), goes_on)
                or cuts.get((clock, step), row.start) > row.start
            ):
                return rows
    return [
        replace(
            row,
            start=cuts.get((clock_of(row.rank.host), row.step), row.start),
            end=cuts.get((clock_of(row.rank.host), row.step + 1), row.end),
        )
        if loops.get((clock_of(row.rank.host), row.rank), {}).get(row.step) is row
        else row
        for row in rows
    ]


def _as_long_as_others(row: RankStep, marked: Sequence[RankStep], clock_of: Callable[[str], str]) -> RankStep:
    """A step without a mark lasts as long as the other ranks say, who have `marked` it; its own ranges tell
    only when it did something.
    """
    if row.marked or row.gpu is not None or row.count != 1:
        return row
    clock = clock_of(row.rank.host)  # an untold one may be right all the same: where the times overlap
    others = [
        other
        for other in marked
        if clock_of(other.rank.host) == clock or (other.start < row.end and row.start < other.end)
    ]
    if not others:
        return row
    return replace(
        row, start=min(row.start, min(o.start for o in others)), end=max(row.end, max(o.end for o in others))
    )
