"""How evenly a phase's time is spread over its ranks, and which rank the others waited for, with the doubt
stated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from rlprof_ops.analyze.metrics.student import quantile
from rlprof_ops.analyze.run.merge import Rank, RankStep

# What GPUs of one model differ by anyway, on average over five clusters: Sinha et al., "Not All GPUs Are
# Created Equal", arXiv 2208.11035. A smaller excess may be real and is no fault of a node.
MIN_SHARE_OF_PHASE = 0.08
MIN_SHARE_OF_STEP = 0.01  # what the step would gain; below it nobody would look
ONE_STEP_SHARE = 0.30  # what it takes when a single step gives no noise to hold it against
FALSE_NAMES = 0.05  # the chance that noise alone passes the test below for any rank of a worker in one phase
MIN_STANDARD_ERRORS = 3.0  # of the rank's own excess over the steps: one bad step makes no straggler
MIN_STEPS_SLOWER = 0.75


@dataclass(frozen=True)
class PhaseSpread:
    """One phase on all ranks of one worker over all steps, nanoseconds a step.

    `own` leaves out the time in collectives that nothing hid, for there the fast wait for the slow and all
    look alike. `imbalance` is max/mean of the ranks' own means: 1 is perfect.
    """

    worker: str
    phase: str
    ranks: int
    steps: int
    mean_ns: int
    median_ns: int
    min_ns: int
    max_ns: int
    own_mean_ns: int
    communication_ns: int
    imbalance: float
    slowest: Rank | None
    share_of_step: float
    by_rank: tuple[tuple[Rank, int, int], ...]  # rank, mean duration, mean own


@dataclass(frozen=True)
class Straggler:
    """A rank that was slower than the others by more than the noise and the clocks' residual allow to
    doubt.
    """

    rank: Rank
    phase: str
    excess_ns: int  # a step, over the median of the other ranks
    share_of_phase: float
    steps: int
    steps_slower: int
    noise_ns: int  # standard error of the excess
    others: int

    @property
    def cost_ns(self) -> int:
        """Rank time that the others stood waiting, a step."""
        return self.excess_ns * self.others


def spreads(rows: Sequence[RankStep]) -> tuple[PhaseSpread, ...]:
    """Every phase of every worker, by worker and then by mean duration."""
    found = []
    for (worker, phase), times in _grouped(rows).items():
        durations = [d for per_step in times.values() for d, _ in per_step.values()]
        by_rank = tuple(
            (rank, round(fmean(d for d, _ in v.values())), round(fmean(o for _, o in v.values())))
            for rank, v in sorted(times.items())
        )
        owns = [own for _, _, own in by_rank]
        steps = {step for per_step in times.values() for step in per_step}
        worker_rows = [row for row in rows if row.rank.worker == worker and row.step in steps]
        mean_step = fmean(row.duration_ns / (row.count or 1) for row in worker_rows) if worker_rows else 0
        slowest = max(by_rank, key=lambda item: item[2])[0] if len(by_rank) > 1 else None
        per_step_mean = sum(durations) / len(durations)
        found.append(
            PhaseSpread(
                worker=worker, phase=phase, ranks=len(times), steps=len(steps), mean_ns=round(per_step_mean),
                median_ns=round(median(durations)), min_ns=min(durations), max_ns=max(durations),
                own_mean_ns=round(fmean(owns)), communication_ns=round(per_step_mean - fmean(owns)),
                imbalance=max(owns) / fmean(owns) if fmean(owns) > 0 else 1.0, slowest=slowest,
                share_of_step=per_step_mean / mean_step if mean_step else 0.0, by_rank=by_rank,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda s: (s.by_rank[0][0].is_controller, s.worker, -s.mean_ns)))


def stragglers(rows: Sequence[RankStep], residual_ns: int | None) -> tuple[Straggler, ...]:
    """Ranks to name, the costliest first.

    A rank's excess in a step is its own time less the median of the others'. It is named for a phase when its
    mean excess

    - is at least 8 % of the phase and 1 % of the step, so that it matters,
    - exceeds what the noise of the run explains: Student's t at `FALSE_NAMES` shared among the ranks, on the
      noise of all
      ranks together, with (ranks - 1)(steps - 1) degrees of freedom; and three standard errors of its own,
    - shows in three quarters of the steps, and exceeds the residual of the clocks where that is known.

    With a single step there is no noise to hold it against, and it must be 30 % of the phase.
    """
    found = []
    for (worker, phase), times in _grouped(rows).items():
        if len(times) < 2 or any(rank.is_controller for rank in times):
            continue
        excesses = _excesses(_where_collectives_were_seen(times))
        noise = _noise(excesses)
        step_ns = median(row.duration_ns / (row.count or 1) for row in rows if row.rank.worker == worker)
        for rank, excess in excesses.items():
            duration = fmean(times[rank][step][0] for step in excess)
            named = _judge(rank, phase, list(excess.values()), duration, noise, len(excesses))
            if (
                named
                and named.excess_ns >= MIN_SHARE_OF_STEP * step_ns
                and named.excess_ns > (residual_ns or 0)
            ):
                found.append(named)
    return tuple(sorted(found, key=lambda s: -s.cost_ns))


Times = dict[int, tuple[int, int]]  # step -> (duration, own)
Excess = dict[int, float]  # step -> own time less the median of the others'


def _excesses(times: dict[Rank, Times]) -> dict[Rank, Excess]:
    found: dict[Rank, Excess] = {}
    for step in {step for mine in times.values() for step in mine}:
        owns = {rank: mine[step][1] for rank, mine in times.items() if step in mine}
        ordered = sorted(owns.values())
        for rank, own in owns.items() if len(owns) > 1 else ():
            found.setdefault(rank, {})[step] = own - _median_without(ordered, own)
    return found


def _median_without(ordered: list[int], left_out: int) -> float:
    """The median of sorted values when one that equals `left_out` is not among them."""
    count = len(ordered) - 1
    high, low = count // 2, (count - 1) // 2
    at = bisect_left(ordered, left_out)
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2


def _noise(excesses: dict[Rank, Excess]) -> tuple[float, int]:
    """Standard deviation of an excess from step to step, over all ranks, and its degrees of freedom.

    Ranks that differ for good do not add to it, for each is held against its own mean.
    """
    squares, left = 0.0, 0
    for excess in excesses.values():
        mean = fmean(excess.values())
        squares += sum((e - mean) ** 2 for e in excess.values())
        left += len(excess) - 1
    if left == 0:
        return 0.0, 0
    # the excesses of a step are one number fewer than the ranks: with two, one is the other's negative
    return (squares / left) ** 0.5, max(round(left * (1 - 1 / len(excesses))), 1)


def _judge(
    rank: Rank, phase: str, excess: list[float], duration: float, noise: tuple[float, int], ranks: int
) -> Straggler | None:
    mean = fmean(excess)
    slower = sum(e > 0 for e in excess)
    floor = ONE_STEP_SHARE if len(excess) == 1 else MIN_SHARE_OF_PHASE
    error = stdev(excess) / len(excess) ** 0.5 if len(excess) > 1 else 0.0
    spread, freedom = noise
    pooled = quantile(1 - FALSE_NAMES / ranks, freedom) * spread / len(excess) ** 0.5 if freedom else 0.0
    if (
        mean <= 0
        or mean < floor * duration
        or mean < max(MIN_STANDARD_ERRORS * error, pooled)
        or slower < MIN_STEPS_SLOWER * len(excess)
    ):
        return None
    return Straggler(rank, phase, round(mean), mean / duration, len(excess), slower, round(error), ranks - 1)


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
