"""How evenly a phase's time is spread over its ranks, and which rank the others waited for, with the doubt
stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from rlprof_ops.analyze.causes.significance import slow_ranks
from rlprof_ops.analyze.report_model import PhaseRow, StragglerRow
from rlprof_ops.analyze.run.merge import Rank, RankStep

# What GPUs of one model differ by anyway, on average over five clusters: Sinha et al., "Not All GPUs Are
# Created Equal", arXiv 2208.11035. A smaller excess may be real and is no fault of a node.
MIN_SHARE_OF_PHASE = 0.08
MIN_SHARE_OF_STEP = 0.01  # what the step would gain; below it nobody would look


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


def stragglers(rows: Sequence[RankStep], residual_ns: int | None) -> tuple[StragglerRow, ...]:
    """Ranks to name, the costliest first.

    A rank's excess in a step is its own time less the median of the others'. It is named for a phase when its
    excess

    - is at least 8 % of the phase and 1 % of the step in the mean and in the median step, so that it matters,
    - is no chance (`slow_ranks`), and shows in three quarters of the steps,
    - exceeds the residual of the clocks where that is known.

    With a single step there is no noise to hold it against, and nobody is named.
    """
    found = []
    groups = {
        key: times
        for key, times in _grouped(rows).items()
        if len(times) > 1 and not any(rank.is_controller for rank in times)
    }
    for (worker, phase), every in groups.items():
        times = _where_collectives_were_seen(every)
        ranks, steps = sorted(times), sorted({step for mine in times.values() for step in mine})
        column = {step: i for i, step in enumerate(steps)}
        own = np.full((len(ranks), len(steps)), np.nan)
        for i, rank in enumerate(ranks):
            for step, (_, time) in times[rank].items():
                own[i, column[step]] = time
        duration = fmean(d for mine in times.values() for d, _ in mine.values())
        step_ns = median(row.duration_ns / (row.count or 1) for row in rows if row.rank.worker == worker)
        least = max(MIN_SHARE_OF_PHASE * duration, MIN_SHARE_OF_STEP * step_ns)
        for slow in slow_ranks(own, least, len(groups)):
            if slow.excess > (residual_ns or 0):
                rank, others = ranks[slow.row], len(ranks) - 1
                found.append(
                    StragglerRow(
                        rank=rank.index, phase=phase, excess_ns=round(slow.excess),
                        share_of_phase=round(float(slow.excess / duration), 5), steps=slow.steps,
                        steps_slower=slow.steps_slower, noise_ns=round(slow.error), others=others,
                        cost_ns=round(slow.excess) * others,
                    )
                )  # fmt: skip
    return tuple(sorted(found, key=lambda s: -s.cost_ns))


Times = dict[int, tuple[int, int]]  # step -> (duration, own)


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
