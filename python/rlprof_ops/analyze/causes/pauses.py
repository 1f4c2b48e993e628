"""Pauses of GPUs inside a phase that the host causes: how often, on which ranks, and what a step loses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rlprof_ops.analyze.causes.waiting import ROLLOUT
from rlprof_ops.analyze.metrics.stalls import GC, Stall
from rlprof_ops.analyze.run.merge import Merged, Rank, RankStep, rank_of
from rlprof_ops.analyze.run.run_steps import SYNC


@dataclass(frozen=True)
class Pauses:
    """Those of one worker and phase in which the hosts were in one kind of thing, `name` the usual one."""

    worker: str
    phase: str
    kind: str
    name: str
    ranks: tuple[int, ...]  # indices
    steps_paused: int
    steps: int
    usual_ns: int  # of one pause
    cost_ns: int  # a step: the others wait for the rank that pauses longest
    when: dict[Rank, tuple[tuple[int, int], ...]]  # on the run's clock


def find_pauses(merged: Merged) -> list[Pauses]:
    """The dearest first. An engine that generates has nothing to do between requests, and who takes new
    weights waits for them: there only garbage collection counts.
    """
    told: dict[tuple[str, str, str], list[tuple[Rank, Stall]]] = defaultdict(list)
    for summary in merged.summaries:
        rank = rank_of(summary)
        for stall in () if rank.is_controller else summary.stalls:
            if stall.kind == GC or stall.phase not in {*ROLLOUT, SYNC}:
                told[rank.worker, stall.phase, stall.kind].append((rank, stall))
    found = []
    for (worker, phase, kind), stalls in told.items():
        numbers = {n for row in _with_phase(merged, worker, phase) for n in row.numbers}
        longest: dict[int, Counter[Rank]] = defaultdict(Counter)
        when: dict[Rank, list[tuple[int, int]]] = defaultdict(list)
        for rank, stall in stalls:
            clock = merged.clocks.of(rank.host)
            longest[stall.step][rank] += stall.end - stall.start
            when[rank].append((clock.aligned(stall.start), clock.aligned(stall.end)))
        cost = sum(max(ranks.values()) for ranks in longest.values()) / max(len(numbers), 1)
        found.append(
            Pauses(
                worker, phase, kind, Counter(stall.name for _, stall in stalls).most_common(1)[0][0],
                tuple(sorted(merged.index[rank] for rank in when)), len(longest), len(numbers),
                round(median(stall.end - stall.start for _, stall in stalls)), round(cost),
                {rank: tuple(spans) for rank, spans in when.items()},
            )
        )  # fmt: skip
    return sorted(found, key=lambda pauses: -pauses.cost_ns)


def _with_phase(merged: Merged, worker: str, phase: str) -> list[RankStep]:
    return [
        row
        for row in merged.steps
        if row.rank.worker == worker and any(part.phase == phase for part in row.phases)
    ]


def idle_of(mine: Rank, phase: str, merged: Merged) -> tuple[int, str]:
    """What of a slow rank's excess its GPU stood idle for, a step, and the field of `IdleSplit` that has most
    of it; 0 where no GPU was recorded.
    """
    rows = _with_phase(merged, mine.worker, phase)
    more: dict[str, float] = {}
    for field in ("host_ns", "synchronising_ns", "queued_ns"):
        of_rank = {rank: _mean_idle(rows, rank, phase, field) for rank in {r.rank for r in rows}}
        others = [value for rank, value in of_rank.items() if rank != mine]
        more[field] = max(of_rank.get(mine, 0.0) - median(others or [0.0]), 0.0)
    return round(sum(more.values())), max(more, key=lambda field: more[field])


def _mean_idle(rows: Sequence[RankStep], rank: Rank, phase: str, field: str) -> float:
    times = [
        getattr(part.idle, field) / row.devices / (row.count or 1)
        for row in rows
        for part in row.phases
        if row.rank == rank and part.phase == phase and part.idle is not None
    ]
    return fmean(times) if times else 0.0
