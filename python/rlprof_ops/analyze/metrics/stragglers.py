"""How evenly a phase's time is spread over its ranks, and which rank the others waited for, with the doubt stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from rlprof_ops.analyze.merge import Rank, RankStep

MIN_SHARE_OF_PHASE = 0.08
MIN_SHARE_OF_STEP = 0.01
ONE_STEP_SHARE = 0.30  # what it takes when a single step gives no noise to hold it against
# standard errors to exceed: about Student's t at 99 % for so many steps, 3 from five steps on
MIN_STANDARD_ERRORS = {2: 8.0, 3: 5.0, 4: 4.0}
ENOUGH_STANDARD_ERRORS = 3.0
MIN_STEPS_SLOWER = 0.75


@dataclass(frozen=True)
class PhaseSpread:
    """One phase on all ranks of one worker over all steps, nanoseconds a step.

    `own` leaves out the time in collectives that nothing hid, for there the fast wait for the slow and all look alike.
    `imbalance` is max/mean of the ranks' own means: 1 is perfect.
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
    """A rank that was slower than the others by more than the noise and the clocks' residual allow to doubt."""

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
            (rank, round(fmean(d for d, _ in v.values())), round(fmean(o for _, o in v.values()))) for rank, v in sorted(times.items())
        )
        owns = [own for _, _, own in by_rank]
        steps = {step for per_step in times.values() for step in per_step}
        worker_rows = [row for row in rows if row.rank.worker == worker and row.step in steps]
        mean_step = fmean(row.duration_ns for row in worker_rows) if worker_rows else 0
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

    A rank is named for a phase when its own time exceeds the median of the others by 8 % of the phase and 1 % of the
    step, by more than three standard errors over the steps (more when the steps are few), in three quarters of the
    steps, and by more than the residual of the clocks where it is known. With a single step it must be 30 % of the phase.
    """
    found = []
    for (worker, phase), times in _grouped(rows).items():
        if len(times) < 2 or any(rank.is_controller for rank in times):
            continue
        times = _where_collectives_were_seen(times)
        step_ns = median(row.duration_ns for row in rows if row.rank.worker == worker)
        for rank, mine in times.items():
            named = _judge(rank, phase, mine, {r: t for r, t in times.items() if r != rank}, step_ns, residual_ns or 0)
            if named is not None:
                found.append(named)
    return tuple(sorted(found, key=lambda s: -s.cost_ns))


Times = dict[int, tuple[int, int]]  # step -> (duration, own)


def _judge(rank: Rank, phase: str, mine: Times, others: dict[Rank, Times], step_ns: float, residual_ns: int) -> Straggler | None:
    excess, usual = [], []
    for step, (_, own) in mine.items():
        beside = [times[step][1] for times in others.values() if step in times]
        if beside:
            usual.append(median(beside))
            excess.append(own - median(beside))
    if not excess:
        return None
    mean = fmean(excess)
    base = fmean(duration for duration, _ in mine.values())
    noise = stdev(excess) / len(excess) ** 0.5 if len(excess) > 1 else 0.0
    slower = sum(e > 0 for e in excess)
    floor = ONE_STEP_SHARE if len(excess) == 1 else MIN_SHARE_OF_PHASE
    if (
        mean < floor * base
        or mean < MIN_SHARE_OF_STEP * step_ns
        or mean < MIN_STANDARD_ERRORS.get(len(excess), ENOUGH_STANDARD_ERRORS) * noise
        or mean <= residual_ns
        or slower < MIN_STEPS_SLOWER * len(excess)
    ):
        return None
    share = mean / base if base else 0.0
    return Straggler(rank, phase, round(mean), share, len(excess), slower, round(noise), len(others))


def _where_collectives_were_seen(times: dict[Rank, Times]) -> dict[Rank, Times]:
    """Leaves out the steps whose reports show no collective, where other reports of the same phase do: in those steps a
    rank's own time cannot be told from its waiting."""
    seen = {step for mine in times.values() for step, (duration, own) in mine.items() if own < duration}
    if not seen:
        return times
    return {rank: kept for rank, mine in times.items() if (kept := {step: t for step, t in mine.items() if step in seen})}


def _grouped(rows: Sequence[RankStep]) -> dict[tuple[str, str], dict[Rank, Times]]:
    groups: dict[tuple[str, str], dict[Rank, Times]] = {}
    for row in rows:
        for phase in row.phases:
            own = max(phase.duration_ns - phase.communication_ns, 0)
            groups.setdefault((row.rank.worker, phase.phase), {}).setdefault(row.rank, {})[row.step] = (phase.duration_ns, own)
    return groups
