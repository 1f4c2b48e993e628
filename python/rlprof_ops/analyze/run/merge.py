"""Brings the summaries of all reports together: who the ranks are, and each rank's steps on one clock."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlprof_ops.analyze.metrics.intervals import Union, union
from rlprof_ops.analyze.metrics.phases import Segment
from rlprof_ops.analyze.report_model import GpuTimes, IdleSplit
from rlprof_ops.analyze.run.clocks import Clocks, HostClock, clocks_of
from rlprof_ops.analyze.run.hosts import told_apart, with_hosts
from rlprof_ops.analyze.run.identity import role_of
from rlprof_ops.analyze.run.process_summary import PhaseTime, StepTime, Summary
from rlprof_ops.analyze.run.run_steps import on_steps_of_the_run, overlapping, steps_from_end_to_end
from rlprof_ops.analyze.run.shared_gpus import UsedGpus, used_gpus
from rlprof_ops.analyze.run.step_parts import whole_step

_CONTROLLER = re.compile(r"controller|driver|main_task|task_?runner|ray_trainer", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Rank:
    """One process of the run. Two processes that both call themselves rank 0 of a worker stay two."""

    worker: str
    rank: int
    host: str
    pid: int
    told_apart: bool = field(default=False, compare=False)  # named with its pid: another has worker and rank
    index: int = field(default=-1, compare=False)  # its place among the ranks of the run

    @property
    def is_controller(self) -> bool:
        """Its ranges span the others' work, so it neither keeps a role busy nor waits for one."""
        return _is_controller(self.worker)

    @property
    def role(self) -> str:
        """Whose work it does: an inner worker of an engine that of its server."""
        return role_of(self.worker)

    @property
    def label(self) -> str:
        return f"{self.worker} rank {self.rank}" + (f" (pid {self.pid})" if self.told_apart else "")


class RankStep(Struct, frozen=True):
    """One step of one rank, its times aligned; of several reports the most complete one."""

    rank: Rank
    step: int
    start: int
    end: int
    marked: bool
    phases: tuple[PhaseTime, ...]
    drawn: tuple[Segment, ...]  # for pictures; sums are taken of `PhaseTime.when`
    gpu: GpuTimes | None
    idle: IdleSplit | None
    source: str  # the report's path
    collectives_seen: bool
    devices: int = 1  # GPUs of its process, whose times `gpu` and `idle` are the sums of
    gpus: UsedGpus = msgspec.field(default_factory=UsedGpus)  # of its process
    opening_ns: int = 0  # cut off the start: the other ranks' profilers were still being opened
    count: int | None = 1  # how many steps it holds: a window that no mark divides; None: nobody knows
    captured: Union | None = None  # what of it the reports cover, where its marks do not tell

    @property
    def duration_ns(self) -> int:
        return self.end - self.start

    @property
    def numbers(self) -> range:
        """The steps it holds."""
        return range(self.step, self.step + (self.count or 1))

    @property
    def recorded(self) -> Union:
        """When it is known what the rank did: in all of a step that it marks, else while it was recorded."""
        whole = _one(self.start, self.end)
        return whole if self.captured is None else self.captured.clipped(self.start, self.end)

    @property
    def in_phases_ns(self) -> int:
        return sum(phase.duration_ns for phase in self.phases)


@dataclass(frozen=True)
class Merged:
    """All reports of a run on one axis."""

    ranks: tuple[Rank, ...]
    steps: tuple[RankStep, ...]  # by step, then rank
    clocks: Clocks
    summaries: tuple[Summary, ...]
    namesakes: tuple[str, ...] = ()  # paths of reports that give one name to processes which ran at a time

    @cached_property
    def t0(self) -> int:
        """The moment that starts in the report count from."""
        first = min((summary.start for summary in self.summaries), default=0)
        return min((row.start for row in self.steps), default=first)

    @cached_property
    def index(self) -> dict[Rank, int]:
        """The place of every rank among `ranks`."""
        return {rank: place for place, rank in enumerate(self.ranks)}

    @cached_property
    def periods(self) -> dict[int, tuple[int, int]]:
        """Where steps overlap: step -> the end of the one before, and its own."""
        clock_of = self.clocks.shared_by
        return steps_from_end_to_end(self.steps, clock_of) if overlapping(self.steps, clock_of) else {}

    @property
    def step_numbers(self) -> tuple[int, ...]:
        """All steps, those inside windows that no mark divides too."""
        return tuple(sorted({number for row in self.steps for number in row.numbers}))


@lru_cache(maxsize=4096)  # asked of each step and phase of every rank
def _is_controller(worker: str) -> bool:
    return _CONTROLLER.search(worker) is not None


def rank_of(summary: Summary) -> Rank:
    return Rank(summary.report.worker, summary.rank, summary.host, summary.pid, summary.told_apart)


def merge(
    summaries: Sequence[Summary],
    probes: dict[str, HostClock] | None = None,
    nodes: Sequence[str] = (),
) -> Merged:
    """One `Merged` of all summaries that were read. `nodes`: the hosts of the run, where they are known."""
    namesakes = _namesakes(summaries)
    summaries = [_by_its_file(s) if s.report.path in namesakes else s for s in summaries]
    summaries = told_apart(with_hosts(_windows_apart(summaries), nodes))
    clocks = clocks_of(summaries, probes)
    ranks = [
        dataclasses.replace(rank, index=i) for i, rank in enumerate(sorted({rank_of(s) for s in summaries}))
    ]
    known = {rank: rank for rank in ranks}
    told: dict[tuple[Rank, int], list[tuple[tuple[bool, int, int, bool], Summary, StepTime]]] = {}
    for summary in summaries:
        counts: dict[int, int] = {}
        for phase in summary.phases:
            counts[phase.step] = counts.get(phase.step, 0) + 1
        for step in summary.steps:
            says = (
                step.marked,
                counts.get(step.step, 0),
                int(bool(summary.devices)),
                summary.collectives_seen,
            )
            told.setdefault((known[rank_of(summary)], step.step), []).append((says, summary, step))
    of_rank: dict[Rank, list[Summary]] = {rank: [] for rank in ranks}
    for summary in summaries:
        of_rank[rank_of(summary)].append(summary)
    gpus = {rank: used_gpus(mine) for rank, mine in of_rank.items()}
    phases = {id(summary): _by_step(summary.phases) for summary in summaries}
    pictures = {id(summary): _by_step(summary.drawn) for summary in summaries}
    rows = [
        whole_step(
            [
                _row(
                    rank,
                    summary,
                    step,
                    clocks.of(summary.host),
                    phases[id(summary)].get(number, []),
                    pictures[id(summary)].get(number, []),
                    gpus[rank],
                )
                for _, summary, step in sorted(reports, key=lambda report: report[0], reverse=True)
            ]
        )
        for (rank, number), reports in told.items()
    ]
    rows = on_steps_of_the_run(rows, clocks.shared_by)
    rows.sort(key=lambda row: (row.step, row.rank))
    return Merged(tuple(ranks), tuple(rows), clocks, tuple(summaries), namesakes)


def _windows_apart(summaries: Sequence[Summary]) -> Sequence[Summary]:
    """The summaries, numbered by time where neither a name nor a range tells any step: captures that do not
    overlap are not of one step.
    """
    if any(s.report.start is not None or step.marked for s in summaries for step in s.steps):
        return summaries
    number, reach, numbers = 0, None, {}
    for summary in sorted((s for s in summaries if s.steps), key=lambda s: s.start):
        number += reach is None or summary.start >= reach
        reach = max(summary.end, reach or summary.end)
        numbers[id(summary)] = number
    return summaries if number < 2 else [s.as_step(numbers.get(id(s), 0)) for s in summaries]


def _namesakes(summaries: Sequence[Summary]) -> tuple[str, ...]:
    """The reports whose names tell no process, which call themselves the same one and were taken at the same
    time: torch and nsys record one window of a process after the other.
    """
    groups: dict[tuple[object, ...], list[Summary]] = {}
    for s in sorted(summaries, key=lambda s: s.start):
        if s.report.pid is None and (s.kind == "torch" or (s.kind == "nsys" and s.on_utc)):
            groups.setdefault((s.kind, s.report.worker, s.rank, s.host, s.pid), []).append(s)
    return tuple(
        dict.fromkeys(
            s.report.path
            for group in groups.values()
            if any(
                2 * (min(a.end, b.end) - b.start) > min(a.end - a.start, b.end - b.start)
                for a, b in pairwise(group)
            )
            for s in group
        )
    )


def _by_its_file(summary: Summary) -> Summary:
    report = summary.report
    named = dataclasses.replace(report, worker=f"{report.worker} ({report.path})")
    return replace(summary, report=named)


P = TypeVar("P", PhaseTime, Segment)


def _by_step(parts: Sequence[P]) -> dict[int, list[P]]:
    found: dict[int, list[P]] = {}
    for part in parts:
        found.setdefault(part.step, []).append(part)
    return found


def _row(
    rank: Rank,
    summary: Summary,
    step: StepTime,
    clock: HostClock,
    own: Sequence[PhaseTime],
    pictures: Sequence[Segment],
    gpus: UsedGpus,
) -> RankStep:
    """The step on the run's clock; phases are measured on it too, so that they and the gaps add up to it."""
    phases = []
    for phase in own:
        when = _aligned(phase.when, clock)
        phases.append(replace(phase, duration_ns=when.length, when=when))
    return RankStep(
        rank=rank,
        step=step.step,
        start=clock.aligned(step.start),
        end=clock.aligned(step.end),
        marked=step.marked,
        phases=tuple(phases),
        drawn=tuple(Segment(s.step, s.phase, clock.aligned(s.start), clock.aligned(s.end)) for s in pictures),
        gpu=step.gpu,
        idle=step.idle,
        source=summary.report.path,
        collectives_seen=summary.collectives_seen,
        count=step.count,
        captured=None if step.marked else _one(clock.aligned(summary.start), clock.aligned(summary.end)),
        devices=max(len(summary.devices), 1),
        gpus=gpus,
    )


def _one(start: int, end: int) -> Union:
    return union(np.array([start], np.int64), np.array([end], np.int64))


def _aligned(when: Union, clock: HostClock) -> Union:
    if clock.drift_ppm == 0:
        return Union(when.start + clock.offset_ns, when.before)
    return union(clock.all_aligned(when.start), clock.all_aligned(when.end))
