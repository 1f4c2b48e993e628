"""What a rank waited for between its phases, and the bubbles between rollout and training that follow from
it.
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
    """One rank's step: phases + waiting + unexplained = step, to the nanosecond.

    `for_ns`: time in no phase of its own while the named worker was in one; when several were, the one with
    the longest phases of that step counts. `unexplained_ns`: no other worker was in a phase either
    (scheduling, transfers, the controller), or none was captured.
    """

    rank: Rank
    step: int
    for_ns: dict[str, int]
    unexplained_ns: int


@dataclass(frozen=True)
class Bubble:
    """How long, in one step, the ranks of `worker` stood idle on average because `because` was in `phase`."""

    step: int
    worker: str
    because: str
    phase: str
    mean_ns: int
    share: float  # of the worker's mean step


def waiting(rows: Sequence[RankStep]) -> tuple[Waiting, ...]:
    """`Waiting` of every rank and step; controllers wait for nobody and keep nobody waiting."""
    found = []
    for step, group in _by_step(rows).items():
        active = _active(group)
        order = sorted(active, key=lambda worker: -active[worker].length)
        for row in group:
            left = _own(row).gaps(row.start, row.end)
            waits: dict[str, int] = {}
            for worker in order if not row.rank.is_controller else ():
                if worker == row.rank.worker:
                    continue
                length = common(left, active[worker]).length
                if length:
                    waits[worker] = length
                    left = without(left, active[worker])
            accounted = row.in_phases_ns + sum(waits.values())
            found.append(Waiting(row.rank, step, waits, row.duration_ns - accounted))
    return tuple(found)


def bubbles(rows: Sequence[RankStep]) -> tuple[Bubble, ...]:
    """For every worker and step, by the phase of another worker it idled through; the largest first.

    The classic two are the training workers idle during rollout and the rollout workers idle during training.
    """
    found = []
    for step, group in _by_step(rows).items():
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
            gaps = [_own(row).gaps(row.start, row.end) for row in mine]
            for (other, phase), busy in by_phase.items():
                if other == worker or mean_step <= 0:
                    continue
                mean = sum(common(gap, busy).length for gap in gaps) / len(gaps)
                if mean > 0:
                    found.append(Bubble(step, worker, other, phase, round(mean), mean / mean_step))
    return tuple(sorted(found, key=lambda b: (b.step, -b.mean_ns)))


def _by_step(rows: Sequence[RankStep]) -> dict[int, list[RankStep]]:
    groups: dict[int, list[RankStep]] = {}
    for row in rows:
        groups.setdefault(row.step, []).append(row)
    return groups


def _active(group: list[RankStep]) -> dict[str, Union]:
    """When any rank of a worker was in a phase."""
    workers = {row.rank.worker for row in group if not row.rank.is_controller}
    return {
        worker: merged(*(part.when for row in group if row.rank.worker == worker for part in row.phases))
        for worker in workers
    }


def _own(row: RankStep) -> Union:
    return merged(*(part.when for part in row.phases)).clipped(row.start, row.end)
