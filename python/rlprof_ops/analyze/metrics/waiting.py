"""What a rank waited for between its phases, and the bubbles between rollout and training that follow from
it.

What nobody recorded is told apart: a worker without a report of a step was not idle in it, it was not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlprof_ops.analyze.metrics.intervals import Union, common, merged, without
from rlprof_ops.analyze.run.merge import Rank, RankStep

ROLLOUT = {"generation"}
TRAINING = {"train", "critic_train"}


@dataclass(frozen=True)
class Waiting:
    """One rank's step: phases + waiting + unexplained + uncaptured = step, to the nanosecond.

    `for_ns`: time in no phase of its own while the named worker was in one; when several were, the one with
    the longest phases of that step counts. `unexplained_ns`: all workers of the run were recorded, and none
    was in a phase (scheduling, transfers, the controller). `uncaptured_ns`: no recorded worker was in a
    phase, and another one, or this rank, was not recorded; all of the step where this worker marks no phases.
    """

    rank: Rank
    step: int
    for_ns: dict[str, int]
    unexplained_ns: int
    uncaptured_ns: int


@dataclass(frozen=True)
class Bubble:
    """How long, in one step, the ranks of `worker` stood idle on average because `because` was in `phase`.

    `steps` is in how many steps of the run both workers were recorded.
    """

    step: int
    worker: str
    because: str
    phase: str
    mean_ns: int
    share: float  # of the worker's mean step
    steps: int


def waiting(rows: Sequence[RankStep]) -> tuple[Waiting, ...]:
    """`Waiting` of every rank and step; controllers wait for nobody and keep nobody waiting."""
    found = []
    workers = _workers(rows)
    one_sided = _one_sided(rows, workers)
    for step, group in _by_step(rows).items():
        active = _active(group)
        seen = {worker: _seen(group, worker) for worker in workers}
        order = sorted(active, key=lambda worker: -active[worker].length)
        for row in group:
            waits: dict[str, int] = {}
            gaps = _own(row).gaps(row.start, row.end)
            left = common(gaps, row.recorded)
            if workers and row.rank.worker not in workers and not row.rank.is_controller:
                left = left.clipped(0, 0)
            unseen = gaps.length - left.length
            for worker in order if not row.rank.is_controller else ():
                if worker == row.rank.worker:
                    continue
                length = common(left, active[worker]).length
                if length:
                    waits[worker] = length
                    left = without(left, active[worker])
            known = left
            for worker in workers - {row.rank.worker}:
                known = common(known, seen[worker])
            if one_sided and row.rank.worker in workers:
                known = left.clipped(0, 0)
            unseen += left.length - known.length
            found.append(Waiting(row.rank, step, waits, known.length, unseen))
    return tuple(found)


def bubbles(rows: Sequence[RankStep]) -> tuple[Bubble, ...]:
    """For every worker and step, by the phase of another worker it idled through; the largest first.

    The classic two are the training workers idle during rollout and the rollout workers idle during training.
    """
    found = []
    groups = _by_step(rows)
    present = {step: {row.rank.worker for row in group if row.phases} for step, group in groups.items()}
    for step, group in groups.items():
        by_phase: dict[tuple[str, str], Union] = {}
        for worker in {row.rank.worker for row in group if not row.rank.is_controller}:
            mine = [row for row in group if row.rank.worker == worker]
            for phase in {part.phase for row in mine for part in row.phases}:
                by_phase[worker, phase] = merged(
                    *(part.when for row in mine for part in row.phases if part.phase == phase)
                )
        for worker in sorted({worker for worker, _ in by_phase}):
            mine = [row for row in group if row.rank.worker == worker]
            mean_step = sum(row.duration_ns for row in mine) / len(mine)
            gaps = [common(_own(row).gaps(row.start, row.end), row.recorded) for row in mine]
            for (other, phase), busy in by_phase.items():
                if other == worker or mean_step <= 0:
                    continue
                mean = sum(common(gap, busy).length for gap in gaps) / len(gaps)
                if mean > 0:
                    both = sum({worker, other} <= workers for workers in present.values())
                    found.append(Bubble(step, worker, other, phase, round(mean), mean / mean_step, both))
    return tuple(sorted(found, key=lambda b: (b.step, -b.mean_ns)))


def _by_step(rows: Sequence[RankStep]) -> dict[int, list[RankStep]]:
    groups: dict[int, list[RankStep]] = {}
    for row in rows:
        groups.setdefault(row.step, []).append(row)
    return groups


def _workers(rows: Sequence[RankStep]) -> set[str]:
    """The workers that mark phases anywhere in the run, controllers left out."""
    return {row.rank.worker for row in rows if row.phases and not row.rank.is_controller}


def _one_sided(rows: Sequence[RankStep], workers: set[str]) -> bool:
    """Whether the only worker that marks phases does but one side of the loop: then the other side, which
    must be somewhere, was not recorded.
    """
    phases = {part.phase for row in rows if row.rank.worker in workers for part in row.phases}
    return len(workers) == 1 and not (phases & ROLLOUT and phases & TRAINING)


def _active(group: list[RankStep]) -> dict[str, Union]:
    """When any rank of a worker was in a phase."""
    workers = {row.rank.worker for row in group if not row.rank.is_controller}
    return {
        worker: merged(*(part.when for row in group if row.rank.worker == worker for part in row.phases))
        for worker in workers
    }


def _seen(group: list[RankStep], worker: str) -> Union:
    """When a worker was recorded in a step: nowhere if no report of the step is there."""
    return merged(*(row.recorded for row in group if row.rank.worker == worker))


def _own(row: RankStep) -> Union:
    return merged(*(part.when for part in row.phases)).clipped(row.start, row.end)
