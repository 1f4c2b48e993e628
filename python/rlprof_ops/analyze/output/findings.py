"""The largest findings of a run in words, each with what it costs, so that they can be ranked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from urllib.parse import quote

from rlprof_ops.analyze.causes.critical import Chain
from rlprof_ops.analyze.causes.dependencies import Window
from rlprof_ops.analyze.causes.what_if import WhatIf, unevenness
from rlprof_ops.analyze.metrics.collectives import CollectiveSkew
from rlprof_ops.analyze.metrics.stragglers import PhaseSpread, Straggler
from rlprof_ops.analyze.metrics.waiting import Bubble, Waiting
from rlprof_ops.analyze.output.advice import advice_on
from rlprof_ops.analyze.output.text import counted, duration, percent
from rlprof_ops.analyze.report_model import Coverage, FindingRow, PipelineRow
from rlprof_ops.analyze.run.merge import Merged, Rank
from rlprof_ops.analyze.whole_run.model import Rollout

MIN_SHARE = 0.03
UNEVEN = 1.15  # the slowest rank's time over the median one's, from which on it is a tail
FAULTS = (
    "straggler",
    "tail",
    "weight_sync",
    "last_requests",
)  # what a change would mend; the rest may only look large
MIN_LEFT = 3  # times the share of the phase that the last requests would take if they ended evenly
MIN_PREEMPTED = 0.01  # of the requests that run at a time
MIN_SKEW = 0.01  # of the step, as for stragglers


@dataclass(frozen=True)
class Finding:
    """One sentence, the time of a step on one rank that it is about, and where to look: a rank, or a worker,
    and a step. `advice` is what to try, `saves_ns` what the step would lose if it were mended, by a replay.
    """

    kind: str
    text: str
    cost_ns: int
    worker: str = ""
    rank: Rank | None = None
    phase: str = ""
    advice: str = ""
    saves_ns: int | None = None
    step: int | None = None

    @property
    def link(self) -> str:
        """The place in the page's timeline."""
        parts = [] if self.step is None else [f"step={self.step}"]
        if self.rank is not None:
            parts += [f"rank={self.rank.rank}", f"worker={quote(self.rank.worker)}"]
        return "#" + "&".join(parts) if parts else ""

    def to_dict(self, index: dict[Rank, int]) -> FindingRow:
        return {
            "kind": self.kind,
            "text": self.text,
            "cost_ns": self.cost_ns,
            "worker": self.worker,
            "rank": None if self.rank is None else index.get(self.rank),
            "phase": self.phase,
            "advice": self.advice,
            "saves_ns": self.saves_ns,
            "step": self.step,
            "link": self.link,
        }


@dataclass(frozen=True)
class Causes:
    """What the graph of the run says."""

    windows: Sequence[Window] = ()
    chains: Sequence[Chain] = ()
    changes: Sequence[WhatIf] = ()

    def saves(self, kind: str, worker: str, phase: str, rank: Rank | None = None) -> WhatIf | None:
        asked = (kind, worker, phase, rank)
        return next((w for w in self.changes if (w.kind, w.worker, w.phase, w.rank) == asked), None)

    def worst(self, worker: str, phase: str) -> tuple[int, Rank] | None:
        """The step in which a phase was the longest link of a chain, and the rank that it was on."""
        found = [
            (link.duration_ns, chain.step, link.rank)
            for chain in self.chains
            for link in chain.links
            if (link.worker, link.phase) == (worker, phase)
        ]
        longest = max(found, key=lambda item: item[0], default=None)
        return None if longest is None else longest[1:]


def find(
    merged: Merged,
    spreads: Sequence[PhaseSpread],
    stragglers: Sequence[Straggler],
    bubbles: Sequence[Bubble],
    waits: Sequence[Waiting],
    skews: Sequence[CollectiveSkew],
    coverage: Coverage,
    causes: Causes | None = None,
    rollout: Rollout | None = None,
    pipeline: Sequence[PipelineRow] = (),
) -> list[Finding]:
    """All findings worth a sentence. What is missing leads; then what a change would mend, by what that would
    save; then what takes long, which may be as it has to be, by what it costs.
    """
    causes = causes or Causes()
    found = [
        *_phases(spreads),
        *_straggling(stragglers, causes),
        *_tails(stragglers, causes),
        *_exposed_sync(causes),
        *_rollout(rollout),
        *_idle_workers(merged, bubbles),
        *_pipelines(pipeline, merged),
        *_gpu(merged),
        *_unexplained(merged, waits),
        *_skewed(skews, merged),
    ]
    found.sort(key=_place)
    found[:0] = _coverage(coverage)
    return [replace(finding, advice=advice_on(finding.kind, finding.phase)) for finding in found]


def _coverage(coverage: Coverage) -> list[Finding]:
    """What the other findings cannot know of."""
    lost = Counter(row["state"] for row in coverage["missing"])
    parts = [
        f"{counted(count, 'planned report')} {'is' if count == 1 else 'are'} {state}"
        for state, count in lost.items()
    ]
    if unread := len(coverage["unread"]):
        parts.append(f"{counted(unread, 'report')} could not be read")
    texts = [f"{' and '.join(parts)}; what follows is said without them."] if parts else []
    if cut := sum(bool(row["truncated"]) for row in coverage["reports"]):
        texts.append(
            f"{counted(cut, 'report')} {'is' if cut == 1 else 'are'} truncated, and"
            f" {'is' if cut == 1 else 'are'} read as far as {'it goes' if cut == 1 else 'they go'}."
        )
    return [Finding("coverage", " ".join(texts), 0)] if texts else []


def so_far(reports: int, ahead: int) -> Finding:
    """What a job has left whose end is not recorded: `ahead` of its reports are here as their node read them,
    the files themselves are on their way.
    """
    of = "the report that has" if reports == 1 else f"the {reports} reports that have"
    text = f"No end of this job is recorded yet: what follows is of {of} arrived so far."
    if ahead:
        text += f" Of {ahead} the file itself is on its way, and its node's reading of it stands in."
    return Finding("partial", text, 0, advice=advice_on("partial"))


def _place(finding: Finding) -> tuple[bool, int]:
    worth = finding.cost_ns if finding.saves_ns is None else finding.saves_ns
    return finding.kind not in FAULTS, -worth


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


def _straggling(stragglers: Sequence[Straggler], causes: Causes) -> list[Finding]:
    found = []
    for s in stragglers[:3]:
        where = f" on {s.rank.host}" if s.rank.host else ""
        text = (
            f"{s.rank.label}{where} is slow in {s.phase}: {duration(s.excess_ns)} a step more than the other "
            f"{'rank' if s.others == 1 else f'{s.others} ranks'}, in {s.steps_slower} of {s.steps} steps."
        )
        change, worst = (
            causes.saves("like_peers", s.rank.worker, s.phase, s.rank),
            causes.worst(s.rank.worker, s.phase),
        )
        saves = change.saves_ns if change else 0 if causes.windows else None
        step = worst[0] if worst else None
        found.append(
            Finding("straggler", text, s.excess_ns, s.rank.worker, s.rank, s.phase, saves_ns=saves, step=step)
        )
    return found


def _tails(stragglers: Sequence[Straggler], causes: Causes) -> list[Finding]:
    """Phases whose slowest rank, not always the same one, keeps the others waiting."""
    slow = {(s.rank.worker, s.phase) for s in stragglers}
    found = []
    for change in causes.changes:
        key = (change.worker, change.phase)
        if change.kind != "even" or key in slow or change.share < MIN_SHARE:
            continue
        times = unevenness(causes.windows, *key)
        if not times or median(longest / usual for longest, usual in times) < UNEVEN:
            continue
        longest, usual = (sum(values) / len(times) for values in zip(*times, strict=True))
        worst = causes.worst(*key)
        text = (
            f"{change.phase} has a long tail on {change.worker}: its slowest rank, not always the same one,"
            f" takes {duration(longest)}, the median one {duration(usual)} ({len(times)} steps)."
        )
        step, rank = worst or (None, None)
        cost = round(longest - usual)
        found.append(
            Finding(
                "tail", text, cost, change.worker, rank, change.phase, saves_ns=change.saves_ns, step=step
            )
        )
    return found


def _exposed_sync(causes: Causes) -> list[Finding]:
    change = next((w for w in causes.changes if w.kind == "overlapped" and w.share >= MIN_SHARE), None)
    if change is None:
        return []
    worst = causes.worst(change.worker, change.phase)
    text = (
        f"weight_sync is exposed: {duration(change.saves_ns)} a step ({percent(change.share)}) in which the"
        f" step waits for {change.worker} and nothing hides it."
    )
    step, rank = worst or (None, None)
    saves = change.saves_ns
    return [
        Finding("weight_sync", text, saves, change.worker, rank, "weight_sync", saves_ns=saves, step=step)
    ]


def _rollout(rollout: Rollout | None) -> list[Finding]:
    """What the engines say of generation: the last requests that all wait for, a cache that is too small."""
    if rollout is None:
        return []
    found = []
    for done in rollout["done"]:
        if done["share"] not in (0.9, 0.95) or done["left"] < MIN_LEFT * (1 - done["share"]):
            continue
        share = done["saves_ms"] / max(rollout["step_ms"], 1e-9)
        if share >= MIN_SHARE:
            cost = round(1e6 * done["saves_ms"])
            text = (
                f"Generation waits for its last requests: when {percent(done['share'])} were done it went on"
                f" for {duration(cost)} a step ({percent(done['left'])} of the phase, {percent(share)} of the"
                f" step), mean of {counted(done['steps'], 'step')}."
            )
            found = [Finding("last_requests", text, cost, phase="generation", saves_ns=cost)]
    if rollout["preempted"] >= max(1.0, MIN_PREEMPTED * rollout["batch_peak"]):
        text = (
            f"The engines' KV cache is too small: {rollout['preempted']:.0f} requests a step are preempted"
            f" and computed again, in {rollout['steps_preempted']} of {counted(rollout['steps'], 'step')};"
            f" at its fullest the cache is {percent(rollout['cache_peak'])} full."
        )
        found.append(Finding("preemption", text, 0, phase="generation"))
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


def _pipelines(rows: Sequence[PipelineRow], merged: Merged) -> list[Finding]:
    """Phases whose stages wait for each other, and the stage that computes longest where they are uneven."""
    found = []
    for worker, phase in sorted({(row["worker"], row["phase"]) for row in rows}):
        stages = [row for row in rows if (row["worker"], row["phase"]) == (worker, phase)]
        ranks = sum(row["ranks"] for row in stages)
        lost = sum((row["waiting_ns"] + row["idle_ns"]) * row["ranks"] for row in stages) / ranks
        share = lost * ranks / max(sum(row["window_ns"] * row["ranks"] for row in stages), 1)
        mine = [row.duration_ns / (row.count or 1) for row in merged.steps if row.rank.worker == worker]
        if not mine or lost < MIN_SHARE * sum(mine) / len(mine):
            continue
        text = (
            f"{worker}'s GPUs stand in pipeline bubbles for {percent(share)} of {phase}: {duration(lost)} a"
            f" step, mean of {counted(ranks, 'rank')} of {counted(stages[0]['stages'], 'stage')}."
        )
        usual = median(row["compute_ns"] for row in stages)
        longest = max(stages, key=lambda row: row["compute_ns"])
        if len(stages) > 1 and longest["compute_ns"] >= UNEVEN * usual > 0:
            text += (
                f" Stage {longest['stage']} computes {longest['compute_ns'] / usual:.2f} times as long as the"
                " median one, and the others wait for it."
            )
        found.append(Finding("pipeline", text, round(lost), worker, phase=phase))
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
