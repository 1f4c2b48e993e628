"""What a rank waited for between its phases, and the bubbles between rollout and training that follow from
it.

What nobody recorded is told apart: a worker without a report of a step was not idle in it, it was not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from rlprof_ops.analyze.metrics.intervals import Union, common, merged, without
from rlprof_ops.analyze.report_model import Bubble
from rlprof_ops.analyze.run.merge import Rank, RankStep
from rlprof_ops.analyze.run.run_steps import MIN_OVERLAP
from rlprof_ops.analyze.run.shared_gpus import UsedGpus

NOTHING = merged()
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
    found = []
    for row in rows:
        worker = row.rank.role
        others = workers - {worker}
        gaps, left = row.gaps, row.free
        if workers and worker not in workers and not row.rank.is_controller:
            left = NOTHING
        unseen = gaps.length - left.length
        waits: dict[str, int] = {}
        if not row.rank.is_controller:
            longest = (
                sorted(others, key=lambda w: -active[w].inside(row.start, row.end))
                if len(others) > 1
                else others
            )
            for other in [*longest, *({worker} & workers)]:
                rest = without(left, active[other]) if left.length else left
                if rest.length < left.length:
                    waits[other], left = left.length - rest.length, rest
        known = NOTHING if one_sided and worker in workers else left
        for other in others if known.length else ():
            known = common(known, seen[other])
        unseen += left.length - known.length
        found.append(Waiting(row.rank, row.step, waits, known.length, unseen))
    return tuple(found)


def bubbles(rows: Sequence[RankStep]) -> tuple[Bubble, ...]:
    """For every worker and step, by the phase of another worker it idled through; the largest first.

    Where two processes share a GPU, neither stands idle while the other is in a phase: they take turns. Of
    workers that may share GPUs (`maybe_sharing`) nothing is said.
    The classic two are the training workers idle during rollout and the rollout workers idle during training.
    """
    workers = _workers(rows)
    present: dict[str, set[int]] = {worker: set() for worker in workers}
    groups: dict[tuple[int, str], list[RankStep]] = {}
    phases: dict[tuple[str, str], list[Union]] = {}
    for row in rows:
        worker = row.rank.role
        if worker not in workers or not row.phases:
            continue
        present[worker].update(row.numbers)
        groups.setdefault((row.step, worker), []).append(row)
        for part in row.phases:
            phases.setdefault((worker, part.phase), []).append(part.when)
    busy = {key: merged(*unions) for key, unions in phases.items()}
    turns, untold = _turns(rows), maybe_sharing(rows)
    both = {(a, b): len(present[a] & present[b]) for a in workers for b in workers}
    found = []
    for (step, worker), mine in groups.items():
        mean_step = sum(row.duration_ns for row in mine) / len(mine)
        gaps = [without(row.free, _others(row, turns)) for row in mine]
        starts = np.concatenate([gap.start for gap in gaps])
        ends = np.concatenate([gap.end for gap in gaps])
        count = max(row.count or 1 for row in mine)
        for (other, phase), when in busy.items():
            if other == worker or mean_step <= 0 or frozenset((worker, other)) in untold:
                continue
            if not any(number in present[other] for number in range(step, step + count)):
                continue
            mean = int(when.within(starts, ends).sum()) / len(gaps)
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


def _others(row: RankStep, turns: dict[str, dict[Rank, list[Union]]]) -> Union:
    """When other processes on this rank's GPUs were in a phase."""
    return merged(
        *(
            when
            for uuid in row.gpus.uuids
            for rank, unions in turns[uuid].items()
            if rank != row.rank
            for when in unions
        )
    )


def _workers(rows: Sequence[RankStep]) -> set[str]:
    """The workers that mark phases anywhere in the run, controllers left out."""
    return {row.rank.role for row in rows if row.phases and not row.rank.is_controller}


def _one_sided(rows: Sequence[RankStep], workers: set[str]) -> bool:
    """Whether the only worker that marks phases does but one side of the loop: then the other side, which
    must be somewhere, was not recorded.
    """
    phases = {part.phase for row in rows if row.rank.role in workers for part in row.phases}
    return len(workers) == 1 and not (phases & ROLLOUT and phases & TRAINING)
