"""What a rank waited for between its phases, and the bubbles between rollout and training that follow from
it.

What nobody recorded is told apart: a worker without a report of a step was not idle in it, it was not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from rlprof_ops.analyze.columns import Ints
from rlprof_ops.analyze.metrics.intervals import Union, common, left_free, merged
from rlprof_ops.analyze.report_model import Bubble
from rlprof_ops.analyze.run.merge import Rank, RankStep
from rlprof_ops.analyze.run.run_steps import MIN_OVERLAP
from rlprof_ops.analyze.run.shared_gpus import UsedGpus

NOWHERE = left_free(np.empty(0, np.int64), np.empty(0, np.int64), [])
ROLLOUT = {"generation"}
TRAINING = {"train", "critic_train"}


@dataclass(frozen=True)
class Waiting:
    """One rank's step: phases + waiting + unexplained + uncaptured = step, to the nanosecond.

    `for_ns`: time in no phase of its own while the named worker was in one; when several were, the one with
    the longest phases of that step counts, and last its own worker, of which other ranks were in one.
    `unexplained_ns`: all workers of the run were recorded, and none was in a phase (scheduling, transfers,
    the controller). `uncaptured_ns`: no recorded worker was in a phase, and another one, or this rank, was
    not recorded; all of the step where this worker marks no phases.
    """

    rank: Rank
    step: int
    for_ns: dict[str, int]
    unexplained_ns: int
    uncaptured_ns: int


def waiting(rows: Sequence[RankStep]) -> tuple[Waiting, ...]:
    """`Waiting` of every rank and step; controllers wait for nobody and keep nobody waiting."""
    workers = _workers(rows)
    one_sided = _one_sided(rows, workers)
    active = {
        worker: merged(*(part.when for row in rows if row.rank.role == worker for part in row.phases))
        for worker in workers
    }
    seen = {worker: merged(*(row.recorded for row in rows if row.rank.role == worker)) for worker in workers}
    bounds = _bounds(rows)
    gaps = left_free(*bounds, [[part.when for part in row.phases] for row in rows]).lengths(len(rows))
    free = left_free(*bounds, [_taken(row) for row in rows])
    found: dict[int, Waiting] = {}
    for (worker, order), mine in _alike(rows, workers, active).items():
        left = free.of(np.array(mine)) if not order or worker in workers else NOWHERE
        waits = {}
        for other in order:
            rest = left.outside(active[other])
            waits[other] = left.lengths(len(rows)) - rest.lengths(len(rows))
            left = rest
        known = NOWHERE if one_sided and worker in workers else left
        for other in workers - {worker}:
            known = known.inside(seen[other])
        unexplained = known.lengths(len(rows))
        for i in mine:
            waited = {other: int(ns[i]) for other, ns in waits.items() if ns[i]}
            uncaptured = int(gaps[i]) - sum(waited.values()) - int(unexplained[i])
            found[i] = Waiting(rows[i].rank, rows[i].step, waited, int(unexplained[i]), uncaptured)
    return tuple(found[i] for i in range(len(rows)))


def _alike(
    rows: Sequence[RankStep], workers: set[str], active: dict[str, Union]
) -> dict[tuple[str, tuple[str, ...]], list[int]]:
    """(worker, whom it waits for, first who counts first) -> its rows; controllers wait for nobody."""
    start, end = _bounds(rows)
    inside = {worker: (-active[worker].within(start, end)).tolist() for worker in sorted(workers)}
    found: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for i, row in enumerate(rows):
        worker = row.rank.role
        others = sorted((ns[i], other) for other, ns in inside.items() if other != worker)
        order = (*(other for _, other in others), *({worker} & workers))
        found.setdefault((worker, () if row.rank.is_controller else order), []).append(i)
    return found


def bubbles(rows: Sequence[RankStep]) -> tuple[Bubble, ...]:
    """For every worker and step, by the phase of another worker it idled through; the largest first.

    Where two processes share a GPU, neither stands idle while the other is in a phase: they take turns. Of
    workers that may share GPUs (`maybe_sharing`) nothing is said.
    The classic two are the training workers idle during rollout and the rollout workers idle during training.
    """
    workers = _workers(rows)
    present: dict[str, set[int]] = {worker: set() for worker in workers}
    groups: dict[tuple[int, str], list[int]] = {}
    phases: dict[tuple[str, str], list[Union]] = {}
    for i, row in enumerate(rows):
        worker = row.rank.role
        if worker not in workers or not row.phases:
            continue
        present[worker].update(row.numbers)
        groups.setdefault((row.step, worker), []).append(i)
        for part in row.phases:
            phases.setdefault((worker, part.phase), []).append(part.when)
    busy = {key: merged(*unions) for key, unions in phases.items()}
    turns, untold = _turns(rows), maybe_sharing(rows)
    idle = left_free(*_bounds(rows), [[*_taken(row), *_others(row, turns)] for row in rows])
    both = {(a, b): len(present[a] & present[b]) for a in workers for b in workers}
    found = []
    for (step, worker), mine in groups.items():
        mean_step = sum(rows[i].duration_ns for i in mine) / len(mine)
        gaps = idle.of(np.array(mine))
        count = max(rows[i].count or 1 for i in mine)
        for (other, phase), when in busy.items():
            if other == worker or mean_step <= 0 or frozenset((worker, other)) in untold:
                continue
            if not any(number in present[other] for number in range(step, step + count)):
                continue
            mean = int(when.within(gaps.start, gaps.end).sum()) / len(mine)
            if mean > 0:
                share = mean / mean_step
                found.append(
                    Bubble(step, worker, other, phase, round(mean), share, count, both[worker, other])
                )
    return tuple(sorted(found, key=lambda b: (b.step, -b.mean_ns)))


def maybe_sharing(rows: Sequence[RankStep]) -> dict[frozenset[str], set[str]]:
    """Pairs of workers -> the hosts where nothing tells whether processes of both used one GPU."""
    used: dict[str, dict[str, set[UsedGpus]]] = {}
    for row in rows:
        used.setdefault(row.rank.host, {}).setdefault(row.rank.role, set()).add(row.gpus)
    found: dict[frozenset[str], set[str]] = {}
    for host, workers in used.items():
        for (one, ours), (two, theirs) in combinations(sorted(workers.items()), 2):
            if any(mine.may_be_of(other) for mine in ours for other in theirs):
                found.setdefault(frozenset((one, two)), set()).add(host)
    return found


def asynchronous(rows: Sequence[RankStep]) -> bool:
    """Whether generation runs beside training, for more than a moment."""
    rollout, training = (
        merged(
            *(
                part.when
                for row in rows
                for part in row.phases
                if part.phase in phases and not row.rank.is_controller
            )
        )
        for phases in (ROLLOUT, TRAINING)
    )
    return common(rollout, training).length > MIN_OVERLAP * min(rollout.length, training.length)


def _turns(rows: Sequence[RankStep]) -> dict[str, dict[Rank, list[Union]]]:
    """When each process that uses a GPU was in a phase, by the GPU's UUID."""
    turns: dict[str, dict[Rank, list[Union]]] = {}
    for row in rows:
        for uuid in row.gpus.uuids:
            turns.setdefault(uuid, {}).setdefault(row.rank, []).extend(part.when for part in row.phases)
    return turns


def _others(row: RankStep, turns: dict[str, dict[Rank, list[Union]]]) -> list[Union]:
    """When other processes on this rank's GPUs were in a phase."""
    return [
        when
        for uuid in row.gpus.uuids
        for rank, unions in turns[uuid].items()
        if rank != row.rank
        for when in unions
    ]


def _taken(row: RankStep) -> list[Union]:
    """When it was in a phase of its own, or not recorded."""
    unrecorded = [] if row.captured is None else [row.captured.gaps(row.start, row.end)]
    return [*(part.when for part in row.phases), *unrecorded]


def _bounds(rows: Sequence[RankStep]) -> tuple[Ints, Ints]:
    return np.array([row.start for row in rows], np.int64), np.array([row.end for row in rows], np.int64)


def _workers(rows: Sequence[RankStep]) -> set[str]:
    """The workers that mark phases anywhere in the run, controllers left out."""
    return {row.rank.role for row in rows if row.phases and not row.rank.is_controller}


def _one_sided(rows: Sequence[RankStep], workers: set[str]) -> bool:
    """Whether the only worker that marks phases does but one side of the loop: then the other side, which
    must be somewhere, was not recorded.
    """
    phases = {part.phase for row in rows if row.rank.role in workers for part in row.phases}
    return len(workers) == 1 and not (phases & ROLLOUT and phases & TRAINING)
