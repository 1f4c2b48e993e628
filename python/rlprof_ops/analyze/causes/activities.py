"""What each rank worked on, as activities: a phase from its begin until the rank turns to another one."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rlprof_ops.analyze.causes.waiting import ROLLOUT, TRAINING
from rlprof_ops.analyze.metrics.intervals import union
from rlprof_ops.analyze.run.merge import Merged, Rank, RankStep, rank_of
from rlprof_ops.analyze.run.run_steps import SYNC

MAX_ACTIVITIES = 64  # a rank and step; more are told as one, named by the phase that takes most
MAX_STRETCHES = 1000  # of phases, a rank and step; as for activities
MAX_CALLS = 16  # of a phase that mostly pauses; with more they are taken together
MAX_MEETINGS = 200  # an activity: beyond, its collectives are taken together
_MOSTLY_PAUSES = 0.5  # of an activity: with less work in it, its calls are activities of their own
_MOSTLY_OTHERS = 0.1  # of a controller's phase: with more work of others inside, it only waits for them
_HIDDEN = 0.1  # of a phase's collectives on the GPU: with more, they do not cut its work


class Meeting(NamedTuple):
    """One collective as one rank saw it. `communicator` tells those of one name apart."""

    name: str
    arrival: int
    release: int
    communicator: str = ""
    on_gpu: bool = False


@dataclass(frozen=True)
class Activity:
    """One phase of one rank, whole: `busy_ns` is its time less pauses inside, `parts` its stretches.

    `meetings` are the collectives inside, on the run's clock; where they are not known one by one,
    `communication_ns` is their exposed time. What stages of a pipeline wait for each other inside is part of
    the work: a shorter stage leaves a shorter bubble. `idle_ns`: its GPU ran nothing.
    """

    rank: Rank
    step: int
    phase: str
    start: int
    end: int
    parts: tuple[int, ...]
    communication_ns: int = 0
    meetings: tuple[Meeting, ...] = ()
    occurrence: int = 0  # of the phase in the rank's step
    idle_ns: int = 0

    @property
    def busy_ns(self) -> int:
        return sum(self.parts)


def activities(merged: Merged) -> list[Activity]:
    """All activities of a run, in order of their begin.

    A controller's phase is one where hardly any other worker is in a phase meanwhile: there it works itself,
    and elsewhere it waits for those whose work this is.
    """
    meetings = _meetings(merged)
    found: list[Activity] = []
    drivers: list[Activity] = []
    apart = _short_calls(merged)
    for row in merged.steps:
        mine = _of_row(row, apart[row.rank.role])
        if row.rank.is_controller:
            drivers += mine
        else:
            found += [_with_meetings(a, meetings.get(row.rank, ())) for a in mine]
    found += _own_work(drivers, found)
    return sorted(found, key=lambda a: (a.start, a.end, a.rank))


def may_be_streamed(phase: str) -> bool:
    """Whether a phase may take generated answers one by one, as a reward does."""
    return phase not in {*ROLLOUT, *TRAINING, SYNC}


def _short_calls(merged: Merged) -> dict[str, set[str]]:
    """Worker -> its phases that are short calls with long pauses, in which others may have worked; not those
    that go on beside another worker's generation, whose pauses are of one stream.
    """
    told: dict[tuple[str, str], list[Activity]] = defaultdict(list)
    for row in merged.steps:
        for run in _runs(row) if row.phases else ():
            told[row.rank.role, run.phase].append(run)
    generated: dict[int, list[Activity]] = defaultdict(list)
    for (_, phase), runs in told.items():
        for run in runs if phase in ROLLOUT else ():
            generated[run.step].append(run)
    found: dict[str, set[str]] = defaultdict(set)
    for (worker, phase), runs in told.items():
        span = sum(run.end - run.start for run in runs)
        few = max(len(run.parts) for run in runs) <= MAX_CALLS
        streamed = may_be_streamed(phase) and all(
            any(a.rank.role != worker and a.start < run.start < a.end for a in generated[run.step])
            for run in runs
        )
        if few and not streamed and sum(run.busy_ns for run in runs) < _MOSTLY_PAUSES * span:
            found[worker].add(phase)
    return found


def _of_row(row: RankStep, apart: Collection[str]) -> list[Activity]:
    if not row.phases:
        return []
    runs = _runs(row, apart)
    phases = {part.phase: part for part in row.phases}
    seen: dict[str, int] = {}
    for i, run in enumerate(runs):
        said = phases[run.phase]
        share = min(run.busy_ns / max(said.duration_ns, 1), 1.0)
        talk = round(share * (said.communication_ns - said.pipeline_ns))
        idle = round(share * said.gpu.idle_ns / max(row.devices, 1)) if said.gpu else 0
        runs[i] = replace(run, communication_ns=talk, occurrence=seen.get(run.phase, 0), idle_ns=idle)
        seen[run.phase] = seen.get(run.phase, 0) + 1
    return runs


def _runs(row: RankStep, apart: Collection[str] = ()) -> list[Activity]:
    """The stretches of a row's phases, those of one phase together until another phase begins; each for
    itself for the phases in `apart`.
    """
    if sum(len(part.when) for part in row.phases) <= MAX_STRETCHES:
        stretches = sorted(
            (a, b, part.phase)
            for part in row.phases
            for a, b in zip(part.when.start.tolist(), part.when.end.tolist(), strict=True)
        )
        runs: list[tuple[str, list[tuple[int, int]]]] = []
        for a, b, phase in stretches:
            if runs and runs[-1][0] == phase and phase not in apart:
                runs[-1][1].append((a, b))
            else:
                runs.append((phase, [(a, b)]))
        if len(runs) <= MAX_ACTIVITIES:
            return [
                Activity(row.rank, row.step, phase, when[0][0], when[-1][1], tuple(b - a for a, b in when))
                for phase, when in runs
            ]
    longest = max(row.phases, key=lambda part: part.duration_ns).phase
    start = min(int(part.when.start[0]) for part in row.phases)
    end = max(int(part.when.end[-1]) for part in row.phases)
    return [Activity(row.rank, row.step, longest, start, end, (row.in_phases_ns,))]


def _meetings(merged: Merged) -> dict[Rank, tuple[Meeting, ...]]:
    """The collectives of each rank, outermost, on the run's clock."""
    found: dict[Rank, list[Meeting]] = {}
    for summary in merged.summaries:
        clock = merged.clocks.of(summary.host)
        for events in summary.collective_events:
            starts, ends = clock.all_aligned(events.start), clock.all_aligned(events.end)
            found.setdefault(rank_of(summary), []).extend(
                Meeting(events.key, a, b, events.communicator, events.on_gpu)
                for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
            )
    outermost: dict[Rank, tuple[Meeting, ...]] = {}
    for rank, meetings in found.items():
        kept: list[Meeting] = []
        for meeting in sorted(set(meetings), key=lambda m: (m.arrival, -m.release)):
            if not kept or meeting.arrival >= kept[-1].release:
                kept.append(meeting)
        outermost[rank] = tuple(kept)
    return outermost


def _with_meetings(activity: Activity, meetings: Sequence[Meeting]) -> Activity:
    """With the collectives inside it, where these are few and whole. On a GPU they may hide behind kernels:
    then they do not cut the work, and what of them is exposed stands in the phase.
    """
    first = bisect_left(meetings, activity.start, key=lambda m: m.arrival)
    last = bisect_left(meetings, activity.end, key=lambda m: m.arrival)
    inside = meetings[first:last]
    whole = 0 < len(inside) <= MAX_MEETINGS and inside[-1].release <= activity.end
    if whole and inside[0].on_gpu:
        taken = sum(m.release - m.arrival for m in inside)
        whole = abs(taken - activity.communication_ns) <= _HIDDEN * activity.communication_ns
    return replace(activity, meetings=tuple(inside)) if whole else activity


def _own_work(drivers: Sequence[Activity], others: Sequence[Activity]) -> list[Activity]:
    busy = union(np.array([a.start for a in others], np.int64), np.array([a.end for a in others], np.int64))
    return [
        driver
        for driver in drivers
        if busy.inside(driver.start, driver.end) <= _MOSTLY_OTHERS * (driver.end - driver.start)
    ]
