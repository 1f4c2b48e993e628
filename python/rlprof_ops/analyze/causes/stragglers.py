"""How evenly a phase's time is spread over its ranks, and which node or rank the others waited for, with the
doubt stated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from rlprof_ops.analyze.causes.significance import (
    ExcessNoise,
    Floats,
    SlowRank,
    chance_above,
    excess_of,
    median_row,
    slow_ranks,
    slow_rows,
    weights_of,
)
from rlprof_ops.analyze.causes.stages import Stages
from rlprof_ops.analyze.columns import Ints
from rlprof_ops.analyze.report_model import PhaseRow, StragglerRow
from rlprof_ops.analyze.run.merge import Rank, RankStep

# What GPUs of one model differ by anyway, on average over five clusters: Sinha et al., "Not All GPUs Are
# Created Equal", arXiv 2208.11035. A smaller excess may be real and is no fault of a node.
MIN_SHARE_OF_PHASE = 0.08
MIN_SHARE_OF_STEP = 0.01  # what the step would gain; below it nobody would look
MIN_DIFFERENCES = 6  # of ranks and phases; fewer do not tell how unlike ranks are
STANDS_OUT = 0.07  # the chance in a run that one of such ranks is named
Names = npt.NDArray[np.str_]


def spreads(rows: Sequence[RankStep]) -> tuple[PhaseRow, ...]:
    """Every phase of every worker, by worker and then by mean duration; controllers come last.

    `own` leaves out the time in collectives that nothing hid, for there the fast wait for the slow and all
    look alike. `imbalance` is max/mean of the ranks' own means: 1 is perfect.
    """
    found = []
    for (worker, phase), times in _grouped(rows).items():
        durations = [d for per_step in times.values() for d, _ in per_step.values()]
        by_rank = [
            [rank.index, round(fmean(d for d, _ in v.values())), round(fmean(o for _, o in v.values()))]
            for rank, v in sorted(times.items())
        ]
        owns = [own for _, _, own in by_rank]
        talk = [d - own for per_step in times.values() for d, own in per_step.values()]
        steps = {step for per_step in times.values() for step in per_step}
        worker_rows = [row for row in rows if row.rank.worker == worker and row.step in steps]
        mean_step = fmean(row.duration_ns / (row.count or 1) for row in worker_rows) if worker_rows else 0
        slowest = max(by_rank, key=lambda item: item[2])[0] if len(by_rank) > 1 else None
        per_step_mean = sum(durations) / len(durations)
        row = PhaseRow(
            worker=worker, phase=phase, ranks=len(times), steps=len(steps), mean_ns=round(per_step_mean),
            median_ns=round(median(durations)), min_ns=min(durations), max_ns=max(durations),
            own_mean_ns=round(fmean(owns)), communication_ns=round(fmean(talk)),
            imbalance=round(max(owns) / fmean(owns), 5) if fmean(owns) > 0 else 1.0, slowest=slowest,
            share_of_step=round(per_step_mean / mean_step, 5) if mean_step else 0.0, by_rank=by_rank,
        )  # fmt: skip
        found.append((min(times).is_controller, row))
    return tuple(row for _, row in sorted(found, key=lambda f: (f[0], f[1].worker, -f[1].mean_ns)))


def stragglers(
    rows: Sequence[RankStep], residual_ns: int | None, stages: Stages | None = None
) -> tuple[StragglerRow, ...]:
    """Nodes and ranks to name: nodes lead, and of each the costliest.

    A rank's excess in a step is its own time less the median of its peers': the other ranks of its stage. A
    node's is the median of its ranks', against the ranks of other nodes. Either is named for a phase when its
    excess

    - is at least 8 % of the phase and 1 % of the step in the mean and in the median step, so that it matters,
    - is no chance (`slow_rows`), and shows in three quarters of the steps,
    - exceeds the residual of the clocks where that is known.

    A slow node explains its ranks: they are judged without its excess. With a single step there is no noise
    to hold it against, and nobody is named.
    """
    found = []
    stages = stages or Stages()
    groups = {
        key: _where_collectives_were_seen(times)
        for key, times in _grouped(rows).items()
        if len(times) > 1 and not any(rank.is_controller for rank in times)
    }
    placed = {key: _Placed.of(times, key[1], stages) for key, times in groups.items()}
    weights = weights_of(
        ExcessNoise.of(excess_of(group.own[peers])).likelihood
        for group in placed.values()
        for peers in group.stages
    )
    for (worker, phase), group in placed.items():
        times = groups[worker, phase]
        duration = fmean(d for mine in times.values() for d, _ in mine.values())
        step_ns = median(row.duration_ns / (row.count or 1) for row in rows if row.rank.worker == worker)
        least = max(MIN_SHARE_OF_PHASE * duration, MIN_SHARE_OF_STEP * step_ns)
        nodes = _nodes(group.host_of)
        tests = len(groups) * (len(group.stages) + bool(nodes))
        own, slow_ones = group.own, []
        for members, slow in _slow_nodes(own, group.stage_of, group.host_of, nodes, least, tests, weights):
            own[members] -= slow.excess
            slow_ones.append((members, slow))
        for peers in group.stages:
            slow_ones += [(peers[[slow.row]], slow) for slow in slow_ranks(own[peers], least, tests, weights)]
        found += [
            _row(members, slow, group.ranks, phase, duration, stages)
            for members, slow in slow_ones
            if slow.excess > (residual_ns or 0)
        ]
    usual = _usual_differences(placed.values(), {rank for row in found for rank in row.ranks})
    found = [row for row in found if row.node is not None or _stands_out(row.share_of_phase, usual)]
    return tuple(sorted(found, key=lambda s: (s.node is None, -s.cost_ns)))


def _usual_differences(groups: Iterable[_Placed], named: Collection[int]) -> Floats:
    """What the ranks that nobody names exceed each other by over all steps, as shares, of all phases."""
    found = []
    for group in groups:
        for peers in group.stages:
            own = group.own[[i for i in peers.tolist() if group.ranks[i].index not in named]]
            if len(own) > 1 and np.nansum(own) > 0:
                excess = excess_of(own)
                excess = excess[~np.isnan(excess).all(axis=1)]  # of ranks that share a step with another
                found += (np.nanmean(excess, axis=1) / np.nanmean(own)).tolist()
    return np.array([share for share in found if np.isfinite(share)])


def _stands_out(share: float, usual: Floats) -> bool:
    """Whether a rank differs by more than ranks do that drift apart for some steps, or are a little unlike
    for good: however alike steps are, that shows in all ranks and phases.
    """
    size = float((usual**2).mean()) ** 0.5 if len(usual) >= MIN_DIFFERENCES else 0.0
    if not size:
        return True
    return float(chance_above(np.array([share / size]), len(usual))[0]) * len(usual) <= STANDS_OUT


@dataclass(frozen=True)
class _Placed:
    """The ranks of a phase, with their stages and hosts; `own` by rank and step."""

    ranks: list[Rank]
    own: Floats
    stage_of: Ints
    host_of: Names

    @classmethod
    def of(cls, times: Mapping[Rank, Times], phase: str, stages: Stages) -> _Placed:
        """Without ranks whose stage is not known."""
        ranks, own = _matrix(times)
        stage = [stages.of(rank, phase) for rank in ranks]
        kept = [i for i, place in enumerate(stage) if place is not None]
        ranks = [ranks[i] for i in kept]
        return cls(
            ranks, own[kept], np.array([stage[i] for i in kept], np.int64), np.array([r.host for r in ranks])
        )

    @property
    def stages(self) -> list[Ints]:
        """The ranks of each stage."""
        return [np.flatnonzero(self.stage_of == place) for place in sorted(set(self.stage_of.tolist()))]


def _row(
    members: Ints, slow: SlowRank, ranks: Sequence[Rank], phase: str, duration: float, stages: Stages
) -> StragglerRow:
    mine = [ranks[i] for i in members.tolist()]
    others, one = len(ranks) - len(mine), len(mine) == 1
    return StragglerRow(
        rank=mine[0].index, phase=phase, excess_ns=round(slow.excess),
        share_of_phase=round(float(slow.excess / duration), 5), steps=slow.steps,
        steps_slower=slow.steps_slower, noise_ns=round(slow.error), others=others,
        cost_ns=round(slow.excess) * others, ranks=[rank.index for rank in mine],
        node=None if one else mine[0].host, stage=stages.known.get(mine[0]) if one else None,
    )  # fmt: skip


def _nodes(host_of: Names) -> dict[str, Ints]:
    """The ranks of each node that has several, where there are several such nodes."""
    nodes = {str(host): np.flatnonzero(host_of == host) for host in dict.fromkeys(host_of.tolist()) if host}
    nodes = {host: members for host, members in nodes.items() if len(members) > 1}
    return nodes if len(nodes) > 1 else {}


def _slow_nodes(
    own: Floats,
    stage_of: Ints,
    host_of: Names,
    nodes: Mapping[str, Ints],
    least: float,
    tests: int,
    weights: Floats,
) -> list[tuple[Ints, SlowRank]]:
    """The ranks of every slow node. In most of them, at least half of the node's excess must show."""
    if not nodes:
        return []
    excess = np.full_like(own, np.nan)
    for host, members in nodes.items():
        for stage in set(stage_of[members].tolist()):
            inside, outside = members[stage_of[members] == stage], (stage_of == stage) & (host_of != host)
            if outside.any():
                excess[inside] = own[inside] - median_row(own[outside])
    by_node = np.stack([median_row(excess[members]) for members in nodes.values()])
    found = []
    for slow in slow_rows(by_node, by_node, least, tests, weights):
        members = list(nodes.values())[slow.row]
        means = sorted(float(np.nanmean(row)) for row in excess[members] if not np.isnan(row).all())
        if means[(len(means) - 1) // 4] >= slow.excess / 2:
            found.append((members, slow))
    return found


Times = dict[int, tuple[int, int]]  # step -> (duration, own)


def _matrix(times: Mapping[Rank, Times]) -> tuple[list[Rank], Floats]:
    """The ranks, and their own times by rank and step; NaN where a rank was not seen."""
    ranks, steps = sorted(times), sorted({step for mine in times.values() for step in mine})
    column = {step: i for i, step in enumerate(steps)}
    own = np.full((len(ranks), len(steps)), np.nan)
    for i, rank in enumerate(ranks):
        for step, (_, time) in times[rank].items():
            own[i, column[step]] = time
    return ranks, own


def _where_collectives_were_seen(times: dict[Rank, Times]) -> dict[Rank, Times]:
    """Leaves out the steps whose reports show no collective, where other reports of the same phase do: in
    those steps a rank's own time cannot be told from its waiting.
    """
    seen = {step for mine in times.values() for step, (duration, own) in mine.items() if own < duration}
    if not seen:
        return times
    return {
        rank: kept
        for rank, mine in times.items()
        if (kept := {step: t for step, t in mine.items() if step in seen})
    }


def _grouped(rows: Sequence[RankStep]) -> dict[tuple[str, str], dict[Rank, Times]]:
    """Times a step; a window that no mark divides is one sample, its mean."""
    groups: dict[tuple[str, str], dict[Rank, Times]] = {}
    for row in rows:
        count = row.count or 1
        for phase in row.phases:
            own = max(phase.duration_ns - phase.communication_ns, 0)
            groups.setdefault((row.rank.worker, phase.phase), {}).setdefault(row.rank, {})[row.step] = (
                phase.duration_ns // count,
                own // count,
            )
    return groups
