"""Long gaps of a GPU's work inside a phase, and where its host was meanwhile."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from rlprof_ops.analyze.columns import Ints, Spans, Trace
from rlprof_ops.analyze.metrics.gpu_time import synchronises
from rlprof_ops.analyze.metrics.host_waits import meets
from rlprof_ops.analyze.metrics.phases import Segment
from rlprof_ops.analyze.phase_names import known
from rlprof_ops.analyze.readers.spill import BLOCK_ROWS, release

MIN_NS = 5_000_000  # of a gap: launch latency and a drained queue take less
MAX_STALLS = 64  # the longest of a trace
COVERED = 0.5  # of a gap, from which on a call explains it
GC, LOADER, SYNCHRONISE, WAIT, CALL, UNTOLD = "gc", "loader", "synchronise", "wait", "call", "untold"
IS_GC = re.compile(r"^python gc\b|garbage.?collect|\bgc[._:]collect|^gc\b", re.IGNORECASE)
_LOADS = re.compile(r"data_?load|dataset|collate|\bprefetch", re.IGNORECASE)
_WAITS = re.compile(r"\b(wait|barrier|recv|ray\.get|object_store)|wait_", re.IGNORECASE)


class Stall(NamedTuple):
    """The GPU ran nothing from `start` to `end`; its host was in `name`, which is a kind of thing."""

    step: int
    phase: str
    start: int
    end: int
    kind: str
    name: str


def find_stalls(trace: Trace, segments: Sequence[Segment]) -> tuple[Stall, ...]:
    """The longest gaps inside phases that work of the same phase ended and that nobody had launched before;
    where several GPUs are a process's, of all of them.
    """
    if not segments or not len(trace.gpu):
        return ()
    gaps = sorted(_gaps(trace, segments), key=lambda gap: gap[1] - gap[2])[:MAX_STALLS]
    calls = _Calls(trace, {segment.phase for segment in segments}) if gaps else None
    return tuple(Stall(s.step, s.phase, a, b, *calls.during(a, b)) for s, a, b in gaps if calls)


def _gaps(trace: Trace, segments: Sequence[Segment]) -> list[tuple[Segment, int, int]]:
    """A gap ends with the work at its end; what was launched before it is the GPU's own affair."""
    starts, ends, rows = _long_gaps(trace)
    launched = trace.launches.index.rows(trace.gpu.correlation[rows])
    ordered = sorted(segments, key=lambda s: s.start)
    places = np.searchsorted(np.array([s.start for s in ordered], np.int64), ends, side="right") - 1
    found = []
    for start, end, call, place in zip(*(c.tolist() for c in (starts, ends, launched, places)), strict=True):
        s = ordered[max(place, 0)]
        begin = max(start, s.start)
        early = call >= 0 and int(trace.launches.start[call]) <= begin
        if s.start <= end < s.end and end - begin >= MIN_NS and not early:
            found.append((s, begin, end))
    return found


def _long_gaps(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Begins and ends of the gaps of all work, the time before the first included, and the rows that end
    them.
    """
    gpu, reach = trace.gpu, min(trace.origin.window_start, int(trace.gpu.start[0]))
    begins, rows = [], []
    for first in range(0, len(gpu), BLOCK_ROWS):
        start = gpu.start[first : first + BLOCK_ROWS]
        ends = np.maximum.accumulate(start + gpu.duration[first : first + BLOCK_ROWS])
        before = np.maximum(np.concatenate(([reach], ends[:-1])), reach)
        long = np.flatnonzero(start - before >= MIN_NS)
        begins.append(before[long])
        rows.append(first + long)
        reach = max(reach, int(ends[-1]))
        release(gpu)
    row = np.concatenate(rows)
    return np.concatenate(begins), gpu.start[row], row


class _Calls:
    """The calls of a process that are long enough to explain a gap."""

    def __init__(self, trace: Trace, phases: Collection[str]) -> None:
        self._names, self._phases = trace.names, phases
        self._tables: list[tuple[Spans, Ints]] = []
        for table in (trace.ranges, trace.ops, trace.launches):
            rows = np.flatnonzero(table.duration >= COVERED * MIN_NS)
            self._tables.append((table, rows))
            release(table)

    def during(self, start: int, end: int) -> tuple[str, str]:
        """What the host was in for most of the time, by what tells most; of equal ones the innermost."""
        found = []
        for table, rows in self._tables:
            begin = np.maximum(table.start[rows], start)
            inside = np.minimum(table.start[rows] + table.duration[rows], end) - begin
            for row in rows[inside >= COVERED * (end - start)].tolist():
                name = self._names[int(table.name[row])]
                kind = _kind(name)
                if kind is not None and name not in self._phases:
                    found.append((_ORDER.index(kind), int(table.duration[row]), kind, name))
        return min(found)[2:] if found else (UNTOLD, "")


_ORDER = (GC, LOADER, SYNCHRONISE, WAIT, CALL)
_MARKS = re.compile(r"^(profiler ?step|(global_|train_)?step\b)", re.IGNORECASE)


def _kind(name: str) -> str | None:
    """What a call is; None of a mark that only says which step or phase it is."""
    if IS_GC.search(name):
        return GC
    if _LOADS.search(name):
        return LOADER
    if synchronises(name):
        return SYNCHRONISE
    if meets(name) or _WAITS.search(name):
        return WAIT
    return None if _MARKS.search(name) or known(name) else CALL
