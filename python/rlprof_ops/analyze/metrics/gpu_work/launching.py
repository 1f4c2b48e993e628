"""Launches of GPU work: how long the call takes, how long until the work begins, how many wait on a stream.

Definitions of HolisticTraceAnalysis (`cuda_kernel_launch_stats`, `get_queue_length_time_series`), restated:
the delay is from the end of the call to the start of its work, never below 0; a launch waits on a stream from
the start of its call to the start of its work. Theirs count the calls of a list of names, one piece of work
each; here every call counts that launched work, a graph as one, which begins with its first piece.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
from msgspec import Struct

from rlprof_ops.analyze.columns import Codes, Ints, Trace, distinct
from rlprof_ops.analyze.metrics.distribution import Distribution, by_key, merged_distribution
from rlprof_ops.analyze.metrics.kernels import NameTotal, launch_moments, phase_codes
from rlprof_ops.analyze.metrics.phases import Segment
from rlprof_ops.analyze.readers.spill import BLOCK_ROWS, release

FULL = 1024  # launches that a CUDA stream takes before the next call has to wait
MOST_NAMES = 100  # of a trace, whose durations are told: those that take the longest in all
MOST_LAUNCHES = 1 << 22  # of a trace, the first ones: each takes 28 bytes here
_HELD_ROWS = 1 << 20
_NEVER = 1 << 62
_VERSION = re.compile(r"_v\d{4,}\w*$")  # of a call, in what nsys writes


class LaunchTotal(Struct, frozen=True):
    """All calls of one name in one phase of one trace that launched work.

    `shorter`: calls whose work, all that they launched, took less time than the call itself.
    """

    phase: str
    call: str
    pieces: int
    shorter: int
    calls: Distribution
    delays: Distribution
    work: Distribution


class QueueLength(Struct, frozen=True):
    """How many launches waited on one stream, from the first call to the last start: mean and shares by
    time.
    """

    device: int
    stream: int
    launches: int
    window_ns: int
    waiting_ns: int  # launches times how long each waited
    longest: int
    empty_ns: int
    full_ns: int


class NameDurations(Struct, frozen=True):
    """The durations of all calls of one kernel in one phase of one trace."""

    phase: str
    name: str
    durations: Distribution


class Launched(Struct, frozen=True):
    """The calls of a trace that launched work, in order of their rows; `first` piece, time of all pieces."""

    row: Ints
    first: Ints
    work: Ints
    pieces: Ints
    device: Codes
    stream: Codes


def launched(trace: Trace) -> Launched:
    """The calls that launched work, and what each launched."""
    gpu, index, calls = trace.gpu, trace.launches.index, min(len(trace.launches), MOST_LAUNCHES)
    first, work = np.full(calls, _NEVER, np.int64), np.zeros(calls, np.int64)
    pieces, device, stream = (np.zeros(calls, np.int32) for _ in range(3))
    for begin in reversed(range(0, len(gpu), BLOCK_ROWS)):
        part = slice(begin, begin + BLOCK_ROWS)
        row = index.rows(gpu.correlation[part])
        known = np.flatnonzero((row >= 0) & (row < calls))
        row = row[known]
        np.add.at(work, row, gpu.duration[part][known])
        np.add.at(pieces, row, 1)
        backward, known = row[::-1], known[::-1]  # of several pieces the first is written last
        first[backward] = gpu.start[part][known]
        device[backward], stream[backward] = gpu.device[part][known], gpu.stream[part][known]
        release(gpu)
    del index
    rows = np.flatnonzero(pieces)
    return Launched(rows, first[rows], work[rows], pieces[rows].astype(np.int64), device[rows], stream[rows])


def launch_totals(trace: Trace, found: Launched, segments: tuple[Segment, ...]) -> tuple[LaunchTotal, ...]:
    """Calls that launched work by the phase they were made in and by name; those that took longest first."""
    if not len(found.row):
        return ()
    start, lasted = trace.launches.start[found.row], trace.launches.duration[found.row]
    phase, phases = phase_codes(start, segments)
    name = trace.launches.name[found.row]
    plain = {code: _VERSION.sub("", trace.names[code]) for code in distinct(name).tolist()}
    labels = list(dict.fromkeys(plain.values()))
    of_name = np.zeros(len(trace.names), np.int64)
    of_name[list(plain)] = [labels.index(label) for label in plain.values()]
    keys = phase.astype(np.int64) * len(labels) + of_name[name]
    delay = np.maximum(found.first - start - lasted, 0)
    calls, delays, work = (by_key(keys, values) for values in (lasted, delay, found.work))
    pieces, shorter = (np.bincount(keys, weights=weights) for weights in (found.pieces, found.work < lasted))
    release(trace.launches)
    rows = [
        LaunchTotal(
            phases[key // len(labels)],
            labels[key % len(labels)],
            int(pieces[key]),
            int(shorter[key]),
            calls[key],
            delays[key],
            work[key],
        )
        for key in calls
    ]
    return tuple(sorted(rows, key=lambda row: -row.calls.total))


def queue_lengths(trace: Trace, found: Launched) -> tuple[QueueLength, ...]:
    """The queue of every stream that a call launched work on; the most launches first."""
    if not len(found.row):
        return ()
    start = trace.launches.start[found.row]
    release(trace.launches)
    rows = []
    streams = found.device.astype(np.int64) << 32 | found.stream.astype(np.int64) & 0xFFFFFFFF
    for key in distinct(streams).tolist():
        mine = np.flatnonzero(streams == key)
        begins = np.sort(start[mine])
        # work that begins before its call, by clocks that differ a little, has waited for nothing
        leaves = np.sort(np.maximum(found.first[mine], start[mine]))
        moments = np.concatenate((begins, leaves))
        change = np.concatenate((np.ones(len(mine), np.int64), np.full(len(mine), -1, np.int64)))
        order = np.argsort(moments, kind="stable")  # who comes at a moment does so before another leaves
        moments, length = moments[order], np.cumsum(change[order])
        held = np.diff(moments)
        rows.append(
            QueueLength(
                device=int(found.device[mine[0]]),
                stream=int(found.stream[mine[0]]),
                launches=len(mine),
                window_ns=int(moments[-1] - moments[0]),
                waiting_ns=int((length[:-1] * held).sum()),
                longest=int(length.max()),
                empty_ns=int(held[length[:-1] == 0].sum()),
                full_ns=int(held[length[:-1] >= FULL].sum()),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.launches))


def kernel_durations(
    trace: Trace, segments: tuple[Segment, ...], totals: tuple[NameTotal, ...]
) -> tuple[NameDurations, ...]:
    """How the durations of the kernels that take longest are spread; `totals` are those of the same trace."""
    chosen = sorted(totals, key=lambda total: -total.total_ns)[:MOST_NAMES]
    places = {(total.phase, total.name): place for place, total in enumerate(chosen)}
    names = {name for _, name in places}
    codes = [code for code, name in enumerate(trace.names) if name in names]
    wanted, moments = None, launch_moments(trace)
    held: list[tuple[Ints, Ints]] = []
    parts: dict[int, list[Distribution]] = defaultdict(list)
    for begin in range(0, len(trace.gpu), BLOCK_ROWS):
        part = slice(begin, begin + BLOCK_ROWS)
        phase, phases = phase_codes(moments(part), segments)
        if wanted is None:
            wanted = np.full((len(phases), len(trace.names)), -1, np.int16)
            for code in codes:
                wanted[:, code] = [places.get((label, trace.names[code]), -1) for label in phases]
        place = wanted[phase, trace.gpu.name[part]].astype(np.int64)
        mine = np.flatnonzero(place >= 0)
        held.append((place[mine], trace.gpu.duration[part][mine]))
        if sum(len(values) for _, values in held) >= _HELD_ROWS:
            _close(held, parts)
    _close(held, parts)
    return tuple(
        NameDurations(chosen[place].phase, chosen[place].name, merged_distribution(mine))
        for place, mine in sorted(parts.items())
    )


def _close(held: list[tuple[Ints, Ints]], parts: dict[int, list[Distribution]]) -> None:
    """What was held goes to the distributions."""
    if held:
        keys, values = (np.concatenate(column) for column in zip(*held, strict=True))
        for place, found in by_key(keys, values).items():
            parts[place].append(found)
        held.clear()
