"""Steps and phases of one trace, from the ranges of our runtime, NeMo RL, verl, RLinf, or any trainer that
names its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from rlprof_ops.analyze.columns import Spans, Trace, distinct
from rlprof_ops.analyze.metrics.intervals import Union, union
from rlprof_ops.analyze.phase_names import PHASE_ORDER as PHASE_ORDER
from rlprof_ops.analyze.phase_names import canonical as canonical
from rlprof_ops.analyze.phase_names import known

_OUR_STEP = re.compile(r"step (\d{1,9})")
_OTHER_STEP = re.compile(r"(?:ProfilerStep#|[Ss]tep[_ #:]|train_step[_ #:]|global_step[_ #:])(\d{1,9})")
# Ranges that libraries write inside phases: parts of a phase, never one
_WITHIN = re.compile(
    r"^(nccl|gloo|mpi|c10d|ucc)[:.]|^(ProfilerStep#|Optimizer\.|FSDP::|FullyShardedDataParallel|DistributedDataParallel|"
    r"enumerate\(|autograd::|aten::|torch::|Torch-Compiled|TorchDynamo|CompiledFunction|Inductor|##"
    r" |\[pl\]|\[param\||"
    r"Pregraph|Python GC|Compile|compile_|triton|cudaGraph|record_param_comms|rlprof)"
)
MOST_STEPS = 10_000  # of a window that no range divides; a name that says more says nothing of it
MAX_SEGMENTS = 400  # drawn a step; every sum is taken of the whole


class Step(Struct, frozen=True):
    """One training step as a process saw it. `marked`: a range said so; otherwise it is the whole capture,
    which holds `count` steps (None: nothing tells how many), or what its repeated phases tell.
    """

    step: int
    start: int
    end: int
    marked: bool = True
    count: int | None = 1


class Segment(Struct, frozen=True):
    """A stretch of a step that belongs to one phase; segments of a step never overlap."""

    step: int
    phase: str
    start: int
    end: int


def find_steps(
    trace: Trace,
    first: int | None = None,
    stop: int | None = None,
    clock: tuple[tuple[int, int, int], ...] = (),
) -> tuple[Step, ...]:
    """The steps of a trace in order of time.

    `step <n>` of our runtime wins over `ProfilerStep#<n>` and the like; a range just called "step" (verl's
    controller) counts from `first`. Without any, the steps are those that the job's driver told, `clock`
    (number, begin and end in Unix nanoseconds), one in which this process was recorded and did nothing too;
    without these the whole capture is one window of the steps `first` to `stop` (half-open; what its file
    name said); phases that repeat as often as there are steps tell them apart.
    """
    if trace.origin.kind == "memory":
        return ()  # samples of memory tell nothing of steps
    labels = {code: trace.names[code] for code in distinct(trace.ranges.name).tolist()}
    for pattern in (_OUR_STEP, _OTHER_STEP):
        numbers = {
            code: int(match.group(1))
            for code, name in labels.items()
            if (match := pattern.fullmatch(name.strip()))
        }
        if numbers:
            return _with_first(trace, _numbered(trace.ranges, numbers), first)
    plain = [code for code, name in labels.items() if name.strip() == "step"]
    if plain:
        rows = np.flatnonzero(np.isin(trace.ranges.name, plain))
        return tuple(
            Step((first or 1) + i, int(trace.ranges.start[row]), int(trace.ranges.end[row]))
            for i, row in enumerate(rows)
        )
    start, end = trace.origin.window_start, trace.origin.window_end
    if end <= start:
        return ()
    if told := tuple(
        Step(number, max(begin, start), min(over, end))
        for number, begin, over in clock
        if trace.origin.on_utc and begin < end and over > start
    ) or tuple(
        Step(number, begin, over)
        for number, begin, over in clock
        if 0 < trace.origin.recorded[0] <= begin and over <= trace.origin.recorded[1]
    ):
        return told
    held = stop - first if first is not None and stop is not None else 0
    count = held if 0 < held <= MOST_STEPS else None
    window = Step(first or 0, start, end, marked=False, count=count)
    return _by_repeated_phases(trace, window) if count and count > 1 else (window,)


def _by_repeated_phases(trace: Trace, window: Step) -> tuple[Step, ...]:
    """The steps of a window whose phases are one sequence, repeated exactly once a step; else the window."""
    runs: list[Segment] = []
    for segment in find_phases(trace, (window,)):
        if not runs or runs[-1].phase != segment.phase:
            runs.append(segment)
    count = window.count or 1
    length, rest = divmod(len(runs), count)
    order = [run.phase for run in runs]
    if rest or length < 2 or order != order[:length] * count or len(set(order[:length])) < length:
        return (window,)
    begins = [window.start, *(runs[i * length].start for i in range(1, count)), window.end]
    return tuple(
        Step(window.step + i, a, b, marked=False) for i, (a, b) in enumerate(pairwise(begins)) if b > a
    )


def _with_first(trace: Trace, steps: tuple[Step, ...], first: int | None) -> tuple[Step, ...]:
    """The steps, and before them the one that opened the window where its range was lost (nsys begins to
    record a moment after it says so): then phases lie before the first step that is marked.
    """
    if first is None or not steps or steps[0].step != first + 1 or len(trace.ranges) == 0:
        return steps
    begin = int(trace.ranges.start[0])
    return (Step(first, begin, steps[0].start, marked=False), *steps) if begin < steps[0].start else steps


def _numbered(ranges: Spans, numbers: dict[int, int]) -> tuple[Step, ...]:
    found: dict[int, tuple[int, int]] = {}
    for row in np.flatnonzero(np.isin(ranges.name, list(numbers))):
        number = numbers[int(ranges.name[row])]
        start, end = int(ranges.start[row]), int(ranges.end[row])
        low, high = found.get(number, (start, end))
        found[number] = (min(low, start), max(high, end))
    steps = sorted((start, end, number) for number, (start, end) in found.items())
    return tuple(Step(number, start, end) for start, end, number in steps if end > start)


def find_phases(trace: Trace, steps: tuple[Step, ...]) -> tuple[Segment, ...]:
    """Which phase a process was in, as stretches that never overlap, so that phases + idle = step.

    A phase is an outermost range inside a step: of nested ranges the outer counts, of ranges that overlap on
    different threads the one that began first counts until it ends. A range that no trainer is known to write
    counts where no known one is: it may be a wrapper around them.
    """
    ranges = trace.ranges
    if not steps or len(ranges) == 0:
        return ()
    named: dict[int, str] = {}
    others: dict[int, str] = {}
    for code in distinct(ranges.name).tolist():
        name = trace.names[code].strip()
        is_step = _OUR_STEP.fullmatch(name) or _OTHER_STEP.fullmatch(name) or name == "step"
        if name and not is_step and not _WITHIN.search(name):
            phase = known(name)
            (others if phase is None else named)[code] = phase or name
    first = _outermost(ranges, named, steps)
    if not others:
        return tuple(first)
    taken = phase_union(tuple(first))
    rest = [
        Segment(s.step, s.phase, int(a), int(b))
        for s in _outermost(ranges, others, steps)
        for a, b in _uncovered(s.start, s.end, taken)
    ]
    return tuple(sorted([*first, *rest], key=lambda s: (s.step, s.start)))


def _outermost(ranges: Spans, labels: dict[int, str], steps: tuple[Step, ...]) -> list[Segment]:
    rows = np.flatnonzero(np.isin(ranges.name, list(labels)))
    if len(rows) == 0:
        return []
    order = rows[np.lexsort((-ranges.duration[rows], ranges.start[rows]))]
    starts, ends, codes = ranges.start[order], ranges.end[order], ranges.name[order]
    segments: list[Segment] = []
    reach = np.maximum.accumulate(ends)
    for step in steps:
        cursor = step.start
        first = int(np.searchsorted(reach, step.start, side="right"))
        last = int(np.searchsorted(starts, step.end, side="left"))
        for row in range(first, last):
            begin, end = max(int(starts[row]), cursor), min(int(ends[row]), step.end)
            if end > begin:
                segments.append(Segment(step.step, labels[int(codes[row])], begin, end))
                cursor = end
    return segments


def _uncovered(start: int, end: int, taken: Union) -> list[tuple[int, int]]:
    """The parts of a stretch that a union does not cover."""
    low = int(np.searchsorted(taken.end, start, side="right"))
    found, cursor = [], start
    while low < len(taken.start) and int(taken.start[low]) < end:
        if int(taken.start[low]) > cursor:
            found.append((cursor, int(taken.start[low])))
        cursor = max(cursor, int(taken.end[low]))
        low += 1
    return [*found, (cursor, end)] if cursor < end else found


def phase_union(segments: tuple[Segment, ...]) -> Union:
    return union(
        np.array([s.start for s in segments], np.int64), np.array([s.end for s in segments], np.int64)
    )


def drawn(segments: tuple[Segment, ...], limit: int = MAX_SEGMENTS) -> tuple[Segment, ...]:
    """At most `limit` segments a step, for pictures only: no sum is taken of them.

    A step with more is cut into that many cells, and a cell shows what takes most of it, a phase or none.
    """
    by_step: dict[int, list[Segment]] = {}
    for segment in segments:
        by_step.setdefault(segment.step, []).append(segment)
    return tuple(
        s for group in by_step.values() for s in (group if len(group) <= limit else _in_cells(group, limit))
    )


def _in_cells(group: list[Segment], limit: int) -> list[Segment]:
    begin, end = min(s.start for s in group), max(s.end for s in group)
    edges = begin + (end - begin) * np.arange(limit + 1) // limit
    most, idle = np.zeros(limit, np.int64), np.diff(edges)
    winner = np.full(limit, -1, np.int64)
    unions = stretches(group)
    for code, phase in enumerate(unions.values()):
        inside = phase.within(edges[:-1], edges[1:])
        idle = idle - inside
        winner[inside > most] = code
        most = np.maximum(most, inside)
    winner[idle > most] = -1
    bounds = [0, *(np.flatnonzero(np.diff(winner)) + 1).tolist(), limit]
    names, step = list(unions), group[0].step
    return [
        Segment(step, names[int(winner[a])], int(edges[a]), int(edges[b]))
        for a, b in pairwise(bounds)
        if winner[a] >= 0
    ]


def stretches(segments: Sequence[Segment]) -> dict[str, Union]:
    """phase -> when the process was in it."""
    pairs: dict[str, tuple[list[int], list[int]]] = {}
    for segment in segments:
        starts, ends = pairs.setdefault(segment.phase, ([], []))
        starts.append(segment.start)
        ends.append(segment.end)
    return {
        phase: union(np.array(starts, np.int64), np.array(ends, np.int64))
        for phase, (starts, ends) in pairs.items()
    }
