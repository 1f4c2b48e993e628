"""The largest findings of a run in words, each with what it costs, so that they can be ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlprof_ops.analyze.metrics.collectives import CollectiveSkew
from rlprof_ops.analyze.metrics.stragglers import PhaseSpread, Straggler
from rlprof_ops.analyze.metrics.waiting import Bubble, Waiting
from rlprof_ops.analyze.output.advice import advice_on
from rlprof_ops.analyze.output.text import duration, percent
from rlprof_ops.analyze.run.merge import Merged, Rank

MIN_SHARE = 0.03
MIN_SKEW = 0.01  # of the step, as for stragglers


@dataclass(frozen=True)
class Finding:
    """One sentence, the time of a step on one rank that it is about, and where to look: a rank, or a
    worker. `advice` is what to try.
    """

    kind: str
    text: str
    cost_ns: int
    worker: str = ""
    rank: Rank | None = None
    phase: str = ""
    advice: str = ""

    def to_dict(self, index: dict[Rank, int]) -> dict[str, Any]:
        return asdict(self) | {"rank": None if self.rank is None else index.get(self.rank)}


def find(
    merged: Merged,
    spreads: Sequence[PhaseSpread],
    stragglers: Sequence[Straggler],
    bubbles: Sequence[Bubble],
    waits: Sequence[Waiting],
    skews: Sequence[CollectiveSkew],
    missing: int,
    unread: int,
) -> list[Finding]:
    """All findings worth a sentence, the costliest first; what is missing leads, then who is slow: both
    can be acted on.
    """
    found = [
        *_phases(spreads),
        *_straggling(stragglers),
        *_idle_workers(merged, bubbles),
        *_gpu(merged),
        *_unexplained(merged, waits),
        *_skewed(skews, merged),
    ]
    found.sort(key=lambda finding: (finding.kind != "straggler", -finding.cost_ns))
    if missing or unread:
        parts = [
            f"{count} {what if count == 1 else many}"
            for count, what, many in (
                (missing, "planned report is missing", "planned reports are missing"),
                (unread, "report could not be read", "reports could not be read"),
            )
            if count
        ]
        found.insert(0, Finding("coverage", " and ".join(parts) + "; what follows is said without them.", 0))
    return [replace(finding, advice=advice_on(finding.kind, finding.phase)) for finding in found]


def _phases(spreads: Sequence[PhaseSpread]) -> list[Finding]:
    """The longest phase of the step, once, whichever worker spends it."""
    usual = [s for s in spreads if s.share_of_step >= 0.05 and not s.by_rank[0][0].is_controller]
    if not usual:
        return []
    top = max(usual, key=lambda s: s.mean_ns)
    text = (
        f"{top.phase} is the longest phase: {duration(top.mean_ns)} a step on {top.worker},"
        f" {percent(top.share_of_step)} of it."
    )
    return [Finding("phase", text, top.mean_ns, top.worker, top.slowest, top.phase)]


def _straggling(stragglers: Sequence[Straggler]) -> list[Finding]:
    found = []
    for s in stragglers[:3]:
        where = f" on {s.rank.host}" if s.rank.host else ""
        text = (
            f"{s.rank.label}{where} is slow in {s.phase}: {duration(s.excess_ns)} a step more than the other "
            f"{'rank' if s.others == 1 else f'{s.others} ranks'}, in {s.steps_slower} of {s.steps} steps."
        )
        found.append(Finding("straggler", text, s.excess_ns, s.rank.worker, s.rank, s.phase))
    return found


def _idle_workers(merged: Merged, bubbles: Sequence[Bubble]) -> list[Finding]:
    """For each worker, the one phase of another that it idles through the longest."""
    found = []
    for worker in sorted({b.worker for b in bubbles}):
        by_cause: dict[tuple[str, str], list[Bubble]] = {}
        for bubble in bubbles:
            if bubble.worker == worker:
                by_cause.setdefault((bubble.because, bubble.phase), []).append(bubble)
        (because, phase), hits = max(
            by_cause.items(), key=lambda item: sum(b.mean_ns for b in item[1]) / item[1][0].steps
        )
        steps = hits[0].steps
        mean = sum(b.mean_ns for b in hits) / steps
        share = sum(b.share * b.count for b in hits) / steps
        if share >= MIN_SHARE:
            few = len(merged.step_numbers) - steps
            seen = "of the one step" if steps == 1 else f"mean of the {steps} steps"
            where = f" ({seen} in which both were captured)" if few else ""
            text = (
                f"{worker} stands idle {duration(mean)} a step ({percent(share)}) while {because} is in"
                f" {phase}{where}."
            )
            found.append(Finding("bubble", text, round(mean), worker, phase=phase))
    return found


def _gpu(merged: Merged) -> list[Finding]:
    found = []
    for worker in sorted({row.rank.worker for row in merged.steps if row.gpu is not None}):
        rows = [
            row
            for row in merged.steps
            if row.rank.worker == worker and row.gpu is not None and row.gpu.window_ns > 0
        ]
        if not rows:
            continue
        window = sum(row.gpu.window_ns for row in rows if row.gpu)
        steps = sum(row.count or 1 for row in rows)
        exposed = sum(row.gpu.exposed_communication_ns / row.devices for row in rows if row.gpu)
        share = sum(row.gpu.exposed_communication_ns for row in rows if row.gpu) / window
        if share >= MIN_SHARE:
            text = (
                f"Communication that nothing hides takes {percent(share)} of {worker}'s GPU time: "
                f"{duration(exposed / steps)} a step."
            )
            found.append(Finding("communication", text, round(exposed / steps), worker))
        host = sum(row.idle.host_ns / row.devices for row in rows if row.idle)
        share = sum(row.idle.host_ns for row in rows if row.idle) / window
        if share >= MIN_SHARE:
            text = (
                f"{worker}'s GPUs wait for the host to launch work for {percent(share)} of the time: "
                f"{duration(host / steps)} a step."
            )
            found.append(Finding("host", text, round(host / steps), worker))
    return found


def _unexplained(merged: Merged, waits: Sequence[Waiting]) -> list[Finding]:
    lengths = {(row.rank, row.step): (row.duration_ns, row.count or 1) for row in merged.steps}
    marking = {row.rank.worker for row in merged.steps if row.phases}
    rows = [w for w in waits if not w.rank.is_controller and (not marking or w.rank.worker in marking)]
    if not rows:
        return []
    found = [*_not_captured(rows, lengths)]
    lost, share = _a_step([w.unexplained_ns for w in rows], rows, lengths)
    if share < 2 * MIN_SHARE:
        return found
    if not any(row.phases for row in merged.steps):
        text = (
            "No report marks a phase, so a step is one piece: wrap generation, train and the like in"
            " prof.range() or record_function()."
        )
        return [Finding("unexplained", text, 0)]
    text = (
        f"For {duration(lost)} of a step ({percent(share)}) no captured worker is in any phase: scheduling,"
        " transfers or the controller."
    )
    return [*found, Finding("unexplained", text, round(lost))]


Lengths = dict[tuple[Rank, int], tuple[int, int]]  # the row's duration, and how many steps it holds


def _a_step(times: list[int], rows: Sequence[Waiting], lengths: Lengths) -> tuple[float, float]:
    """The mean of such a time a step, and its share."""
    whole = sum(lengths[w.rank, w.step][0] for w in rows)
    return sum(times) / sum(lengths[w.rank, w.step][1] for w in rows), sum(times) / max(whole, 1)


def _not_captured(rows: Sequence[Waiting], lengths: Lengths) -> list[Finding]:
    """What cannot be said because a worker was not recorded: no cost, for nothing is known of it."""
    lost, share = _a_step([w.uncaptured_ns for w in rows], rows, lengths)
    if share < 2 * MIN_SHARE:
        return []
    workers = sorted({w.rank.worker for w in rows if w.uncaptured_ns})
    text = (
        f"For {duration(lost)} of a step ({percent(share)}) {' and '.join(workers)}"
        f" {'is' if len(workers) == 1 else 'are'} in no phase while other workers were not captured:"
        " whether this is idle time cannot be told. Capture all workers in the same steps."
    )
    return [Finding("uncaptured", text, 0, workers[0] if workers else "")]


def _skewed(skews: Sequence[CollectiveSkew], merged: Merged) -> list[Finding]:
    steps = max(len(merged.step_numbers), 1)
    least = MIN_SKEW * sum(row.duration_ns for row in merged.steps) / max(len(merged.steps), 1)
    found = []
    for skew in skews[:1]:
        cost = skew.waiting_ns * skew.calls // steps
        if (
            cost < least or skew.last is None or skew.last_share < min(0.9, 1 / skew.ranks + 0.35)
        ):  # well above chance
            continue
        text = (
            f"{skew.last.label} comes last to {percent(skew.last_share)} of {skew.worker}'s {skew.key}"
            f" collectives; the ranks wait {duration(cost)} a step in them."
        )
        found.append(Finding("skew", text, cost, skew.worker, skew.last))
    return found
