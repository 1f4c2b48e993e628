"""The largest findings of a run in words, each with what it costs, so that they can be ranked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low
from urllib.parse import quote

from msgspec import structs

from rlprof_ops.analyze.causes.collectives import SlowGroup
from rlprof_ops.analyze.causes.dependencies import StepGraph
from rlprof_ops.analyze.causes.pauses import Pauses, idle_of
from rlprof_ops.analyze.causes.stragglers import MIN_SHARE_OF_PHASE
from rlprof_ops.analyze.causes.waiting import ROLLOUT, TRAINING, Waiting, asynchronous, maybe_sharing
from rlprof_ops.analyze.causes.what_if import mean_step
from rlprof_ops.analyze.metrics import stalls
from rlprof_ops.analyze.output.advice import advice_on
from rlprof_ops.analyze.output.gpu_findings import MIN_SHARE, unit
from rlprof_ops.analyze.output.request_findings import request_findings
from rlprof_ops.analyze.output.text import counted, duration, percent
from rlprof_ops.analyze.report_model import (
    Bubble,
    ChainRow,
    Coverage,
    Finding,
    PhaseRow,
    PipelineRow,
    SkewRow,
    StragglerRow,
    WhatIfRow,
    WorkerRanks,
)
from rlprof_ops.analyze.run.merge import Merged, Rank
from rlprof_ops.analyze.whole_run.run_data import RecordedFinding, Rollout, WholeRun
from rlprof_ops.recorder.detect.anomaly import HANG, LONG_WAIT, MEMORY, SLOW_RANK, THROTTLE

WHOLE = 0.8  # of a phase that is waited through: ranks and clocks are not exact
UNEVEN = 1.15  # the slowest rank's time over the median one's, from which on it is a tail
FAULTS = (
    "straggler",
    "slow_group",
    "pause",
    "tail",
    "weight_sync",
    "last_requests",
)  # what a change would mend; the rest may only look large
MIN_LEFT = 3  # times the share of the phase that the last requests would take if they ended evenly
MIN_PREEMPTED = 0.01  # of the requests that run at a time
MAX_STRAGGLERS = 3
MAX_MISSING = 8  # ranks in a sentence
SAID_ALWAYS = (THROTTLE, MEMORY, HANG, LONG_WAIT)  # of the recorder's findings: no window shows them
IDLE = {
    "host_ns": ", for the host launches too late",
    "synchronising_ns": ", while the host is in synchronise calls",
    "queued_ns": ", before work that was launched already",
}
MIN_SKEW = 0.01  # of the step, as for stragglers


@dataclass(frozen=True)
class Causes:
    """What the graph of the run says."""

    windows: Sequence[StepGraph] = ()
    chains: Sequence[ChainRow] = ()
    changes: Sequence[WhatIfRow] = ()
    groups: Sequence[SlowGroup] = ()
    pauses: Sequence[Pauses] = ()

    def mended(self, row: StragglerRow, worker: str) -> int | None:
        """What a step would lose if a slow node or rank were like its peers; None where no graph tells."""
        asked = ("like_peers", worker, row.phase, row.rank)
        for change in self.changes:
            if row.node is not None and change.node == row.node:
                return change.saves_ns
            if row.node is None and (change.kind, change.worker, change.phase, change.rank) == asked:
                return change.saves_ns
        return 0 if self.chains else None  # where steps overlap, little is no number

    def with_other_links(self, group: SlowGroup) -> int | None:
        """What a step would lose if a group's links were like its siblings'; None where no graph tells."""
        asked = ("like_peers", group.kind.worker, group.ranks)
        told = (w.saves_ns for w in self.changes if (w.kind, w.worker, tuple(w.members)) == asked)
        return next(told, None)

    def without(self, pauses: Pauses) -> int | None:
        """What a step would lose without pauses; None where no graph tells."""
        asked = ("no_pauses", pauses.worker, pauses.phase, pauses.ranks)
        told = (w.saves_ns for w in self.changes if (w.kind, w.worker, w.phase, tuple(w.members)) == asked)
        return next(told, None)

    def worst(self, worker: str, phase: str) -> tuple[int | None, int | None]:
        """The step in which a phase was the longest link of a chain, and the rank that it was on."""
        found = [
            (link.duration_ns, chain.step, link.rank)
            for chain in self.chains
            for link in chain.links
            if (link.worker, link.phase) == (worker, phase)
        ]
        return max(found, key=lambda item: item[0], default=(0, None, None))[1:]


def find(
    merged: Merged,
    spreads: Sequence[PhaseRow],
    stragglers: Sequence[StragglerRow],
    bubbles: Sequence[Bubble],
    waits: Sequence[Waiting],
    skews: Sequence[SkewRow],
    coverage: Coverage,
    causes: Causes | None = None,
    pipeline: Sequence[PipelineRow] = (),
    on_gpus: Sequence[Finding] = (),
    whole: WholeRun | None = None,
) -> list[Finding]:
    """All findings worth a sentence. What is missing leads; then what a change would mend, by what that would
    save; then what takes long, which may be as it has to be, by what it costs; then what is so by design.
    """
    causes = causes or Causes()
    rollout, requests = (whole.rollout, whole.requests) if whole else (None, None)
    recorded = whole.found if whole else ()
    turns = _turns(bubbles, spreads)
    found = [
        *_phases(spreads, merged, whole),
        *_straggling(stragglers, merged, causes, recorded),
        *_recorded_only(recorded, stragglers, spreads, merged, causes),
        *_slow_groups(merged, causes),
        *_pauses(stragglers, merged, causes),
        *_tails(stragglers, merged, causes),
        *_exposed_sync(causes),
        *_rollout(rollout, by_request=requests is not None),
        *request_findings(requests),
        *_idle_workers(merged, bubbles, turns),
        *_untold_gpus(merged),
        *_pipelines(pipeline, merged),
        *on_gpus,
        *_unexplained(merged, waits),
        *_skewed(skews, merged, causes.groups),
    ]
    slow = {(f.rank, f.phase) for f in found if f.kind == "straggler" and f.rank is not None}
    found = [f for f in found if f.kind != "pause" or (f.rank, f.phase) not in slow]  # said there
    found.sort(key=lambda finding: _place(finding, turns))
    found[:0] = _coverage(coverage, merged.namesakes)
    beside = asynchronous(merged.steps)
    return [
        structs.replace(
            row, advice=row.advice or advice_on(row.kind, row.phase, beside), link=_link(row, merged)
        )
        for row in found
    ]


def _link(finding: Finding, merged: Merged) -> str:
    """The place in the page's timeline."""
    parts = [] if finding.step is None else [f"step={finding.step}"]
    if finding.rank is not None:
        rank = merged.ranks[finding.rank]
        parts += [f"rank={rank.rank}", f"worker={quote(rank.worker)}"]
        if sum((other.worker, other.rank) == (rank.worker, rank.rank) for other in merged.ranks) > 1:
            parts += [f"host={quote(rank.host)}", f"pid={rank.pid}"]
    return "#" + "&".join(parts) if parts else ""


def _coverage(coverage: Coverage, namesakes: Sequence[str]) -> list[Finding]:
    """What the other findings cannot know of."""
    lost = Counter(row.state for row in coverage.missing)
    parts = [
        f"{counted(count, 'planned report')} {'is' if count == 1 else 'are'} {state}"
        for state, count in lost.items()
    ]
    if unread := len(coverage.unread):
        parts.append(f"{counted(unread, 'report')} could not be read")
    texts = [f"{' and '.join(parts)}; what follows is said without them."] if parts else []
    texts += [_without(row) for row in coverage.ranks if row.missing and 2 * row.ranks > row.world]
    if cut := sum(bool(row.truncated) for row in coverage.reports):
        texts.append(
            f"{counted(cut, 'report')} {'is' if cut == 1 else 'are'} truncated, and"
            f" {'is' if cut == 1 else 'are'} read as far as {'it goes' if cut == 1 else 'they go'}."
        )
    if namesakes:
        texts.append(
            f"{' and '.join(namesakes)} were taken at the same time and say the same worker, rank and"
            " process: each counts as a worker of its own. Named <worker>_rank<number>, they are ranks."
        )
    return [Finding("coverage", " ".join(texts), 0)] if texts else []


def _without(row: WorkerRanks) -> str:
    """What it means that ranks are missing where most are there: then none was left out on purpose."""
    named = ", ".join(map(str, row.missing[:MAX_MISSING])) + (", …" if len(row.missing) > MAX_MISSING else "")
    one = len(row.missing) == 1
    return (
        f"{row.ranks} of {counted(row.world, 'rank')} of {row.worker} were read, all but"
        f" {'rank' if one else 'ranks'} {named}: if the others wait for {'it' if one else 'one of them'},"
        " nothing here can name it."
    )


def so_far(reports: int, ahead: int) -> Finding:
    """What a job has left whose end is not recorded: `ahead` of its reports are here as their node read them,
    the files themselves are on their way.
    """
    of = "the report that has" if reports == 1 else f"the {reports} reports that have"
    text = f"No end of this job is recorded yet: what follows is of {of} arrived so far."
    if ahead:
        text += f" Of {ahead} the file itself is on its way, and its node's reading of it stands in."
    return Finding("partial", text, 0, advice=advice_on("partial"))


def _place(finding: Finding, turns: set[tuple[str, str]]) -> tuple[int, int]:
    worth = finding.cost_ns if finding.saves_ns is None else finding.saves_ns
    if finding.kind in FAULTS:
        return 0, -worth
    nothing_marked = finding.kind == "unexplained" and not worth
    if nothing_marked or finding.kind in ("uncaptured", "untold_gpus"):  # nothing is known of it
        return 3, -worth
    in_turn = finding.kind == "bubble" and (finding.worker, finding.phase) in turns
    return 2 if in_turn or finding.kind in ("phase", "kernels") else 1, -worth


def _turns(bubbles: Sequence[Bubble], spreads: Sequence[PhaseRow]) -> set[tuple[str, str]]:
    """(worker, phase that it waits through) of two workers that each wait through the other's generation or
    training, the whole of it, and of all others that wait through that: so it is in every synchronous loop,
    and in no asynchronous one.
    """
    lengths = {(row.worker, row.phase): row.mean_ns for row in spreads}
    waited: Counter[tuple[str, str, str]] = Counter()
    for bubble in bubbles:
        waited[bubble.worker, bubble.because, bubble.phase] += round(bubble.mean_ns / bubble.steps)
    waits = {key for key, mean_ns in waited.items() if mean_ns >= WHOLE * lengths.get(key[1:], 0)}
    in_turn = {
        place
        for one, other, phase in waits
        if phase in ROLLOUT
        for back in TRAINING
        if (other, one, back) in waits
        for place in ((other, phase), (one, back))
    }
    return {(who, phase) for who, because, phase in waits if (because, phase) in in_turn}


def _phases(spreads: Sequence[PhaseRow], merged: Merged, whole: WholeRun | None) -> list[Finding]:
    """The longest phase of the step, once, whichever worker spends it; without any window, by the record."""
    if whole is not None and whole.phases and not merged.steps:
        means = {
            p.name: sum(ms * n for ms, n in zip(p.own_ms, whole.counts, strict=True)) for p in whole.phases
        }
        longest = max(means, key=lambda name: means[name])
        mean_ns = round(1e6 * means[longest] / max(whole.count, 1))
        text = (
            f"{longest} is the longest phase: {duration(mean_ns)} a step on {whole.worker}, by the record of"
            f" {counted(whole.count, 'step')}."
        )
        return [Finding("phase", text, mean_ns, whole.worker, phase=longest)]
    of_workers = {s.phase for s in spreads if not _by_controller(s, merged)}
    usual = [
        s
        for s in spreads
        if s.share_of_step >= 0.05 and not (s.phase in of_workers and _by_controller(s, merged))
    ]
    if not usual:
        return []
    top = max(usual, key=lambda s: s.mean_ns)
    text = (
        f"{top.phase} is the longest phase: {duration(top.mean_ns)} {unit(merged.steps)} on {top.worker},"
        f" {percent(top.share_of_step)} of it."
    )
    return [Finding("phase", text, top.mean_ns, top.worker, top.slowest, top.phase)]


def _by_controller(row: PhaseRow, merged: Merged) -> bool:
    return merged.ranks[row.by_rank[0][0]].is_controller


def _straggling(
    stragglers: Sequence[StragglerRow], merged: Merged, causes: Causes, recorded: Sequence[RecordedFinding]
) -> list[Finding]:
    """At most three nodes or ranks; a node once, with all that it is slow in. What every step of the run says
    of a rank stands beside what the windows do.
    """
    since = {(r.worker, r.rank): r for r in recorded if r.kind == SLOW_RANK and r.seconds > r.peers_s > 0}
    groups: dict[object, list[StragglerRow]] = {}
    for row in stragglers:
        groups.setdefault(row.node or (row.rank, row.phase), []).append(row)
    found = []
    for rows in list(groups.values())[:MAX_STRAGGLERS]:
        s, rank = rows[0], merged.ranks[rows[0].rank]
        in_steps = f"{duration(s.excess_ns)} a step more than"
        if s.node is not None:
            text = (
                f"Node {s.node} is slow in {s.phase}: {counted(len(s.ranks), 'rank')} of {rank.worker} on it"
                f" take {in_steps} their peers on other nodes, in {s.steps_slower} of {s.steps} steps."
            )
            if more := [_slow_too(row, merged, rank.worker) for row in rows[1:]]:
                text += f" It is slow in {' and '.join(more)} too."
        else:
            peers = "rank" if s.others == 1 else f"{s.others} ranks"
            text = (
                f"{rank.label}{f' on {rank.host}' if rank.host else ''} is slow in {s.phase}: {in_steps} the"
                f" other {peers if s.stage is None else f'ranks of stage {s.stage}'}, in {s.steps_slower} of"
                f" {s.steps} steps.{_its_gpu(rank, s.phase, s.excess_ns, merged, causes)}"
            )
            if told := since.get((rank.worker, rank.rank)):
                text += (
                    f" By {_seen_by(told)} it is slow since step {told.since or told.step}:"
                    f" {told.seconds / told.peers_s:.2f} times its peers' {told.phase or 'step'}."
                )
        cost = sum(row.excess_ns for row in rows)
        found.append(
            Finding(
                "straggler", text, cost, rank.worker, s.rank, s.phase,
                advice=advice_on("straggler" if s.node is None else "slow_node"),
                saves_ns=causes.mended(s, rank.worker), step=causes.worst(rank.worker, s.phase)[0],
            )
        )  # fmt: skip
    return found


def _seen_by(told: RecordedFinding) -> str:
    """By what the recorder has found a slow rank."""
    return "when it called its collectives" if told.waited_s else "every step of the run"


def _slow_too(row: StragglerRow, merged: Merged, worker: str) -> str:
    whose = merged.ranks[row.rank].worker
    return f"{row.phase}{'' if whose == worker else f' of {whose}'} ({duration(row.excess_ns)})"


def _recorded_only(
    recorded: Sequence[RecordedFinding],
    stragglers: Sequence[StragglerRow],
    spreads: Sequence[PhaseRow],
    merged: Merged,
    causes: Causes,
) -> list[Finding]:
    """What every step of the run says and the windows do not: ranks too little slow for so few steps, or
    captured too early, or not at all; of those that were captured, what the windows say of the cause.
    """
    named = {(merged.ranks[r].worker, merged.ranks[r].rank) for s in stragglers for r in (s.rank, *s.ranks)}
    found = []
    for row in recorded:
        if row.kind in SAID_ALWAYS or (row.kind == SLOW_RANK and not row.worker):
            at = f", at step {row.step}" if row.step else ""
            found.append(Finding("recorded", f"The recorder{at}: {row.text}.", 0))
            continue
        if row.kind != SLOW_RANK or (row.worker, row.rank) in named or row.seconds <= row.peers_s:
            continue
        lost = round(1e9 * (row.seconds - row.peers_s))
        text = (
            f"{row.worker} rank {row.rank} is slow in {row.phase or 'its steps'} since step"
            f" {row.since or row.step}, by {_seen_by(row)}: {duration(1e9 * row.seconds)}, its peers"
            f" {duration(1e9 * row.peers_s)}."
        )
        rank = next((r for r in merged.ranks if (r.worker, r.rank) == (row.worker, row.rank)), None)
        if rank is not None:
            text += _in_the_windows(rank, row.phase, spreads, merged, causes)
        place = None if rank is None else rank.index
        alone = (
            p for p in causes.pauses if (p.worker, p.phase, p.ranks) == (row.worker, row.phase, (place,))
        )
        saves = next(map(causes.without, alone), None)
        found.append(Finding("straggler", text, lost, row.worker, place, row.phase, saves_ns=saves))
    return found[:MAX_STRAGGLERS]


def _in_the_windows(
    rank: Rank, phase: str, spreads: Sequence[PhaseRow], merged: Merged, causes: Causes
) -> str:
    own = {
        place: time
        for row in spreads
        if (row.worker, row.phase) == (rank.worker, phase)
        for place, _, time in row.by_rank
    }
    others = [time for place, time in own.items() if place != rank.index]
    if rank.index not in own or not others:
        return ""
    more = round(own[rank.index] - median(others))
    if more < MIN_SHARE_OF_PHASE * median(others):
        return " In the captured steps it is not."
    return (
        f" In the captured steps it takes {duration(more)} more.{_its_gpu(rank, phase, more, merged, causes)}"
    )


def _its_gpu(rank: Rank, phase: str, excess_ns: int, merged: Merged, causes: Causes) -> str:
    """That a slow rank's GPU stood idle, and where its host was, where that is most of its excess."""
    for pauses in causes.pauses:
        paused = sum(b - a for a, b in pauses.when.get(rank, ())) / max(pauses.steps, 1)
        if (pauses.worker, pauses.phase) == (rank.worker, phase) and 2 * paused >= excess_ns:
            return f" Its GPU stands idle for {duration(paused)} of it, while {_host_was(pauses)}."
    idle, field = idle_of(rank, phase, merged)
    return f" Its GPU stands idle for {duration(idle)} of it{IDLE[field]}." if 2 * idle >= excess_ns else ""


def _host_was(pauses: Pauses) -> str:
    return {
        stalls.GC: f"the host collects garbage ({pauses.name})",
        stalls.LOADER: f"the host waits for data ({pauses.name})",
        stalls.SYNCHRONISE: f"the host is in {pauses.name}",
        stalls.WAIT: f"the host waits in {pauses.name}",
        stalls.CALL: f"the host is in {pauses.name}",
    }.get(pauses.kind, "the host is in no call that the trace shows")


def _pauses(stragglers: Sequence[StragglerRow], merged: Merged, causes: Causes) -> list[Finding]:
    """GPUs that pause inside a phase because of the host, but for those of ranks that are named for it."""
    named = {(merged.ranks[s.rank].worker, s.phase): {s.rank, *s.ranks} for s in stragglers}
    step_ns = mean_step(merged)
    found = []
    for pauses in causes.pauses:
        alone = set(pauses.ranks) <= named.get((pauses.worker, pauses.phase), set())
        if alone or pauses.cost_ns < MIN_SHARE * step_ns:
            continue
        one = len(pauses.ranks) == 1
        who = (
            f"{merged.ranks[pauses.ranks[0]].label}'s GPU stands"
            if one
            else f"GPUs of {counted(len(pauses.ranks), 'rank')} of {pauses.worker} stand"
        )
        text = (
            f"{who} idle in {pauses.phase} for {duration(pauses.usual_ns)} at a time while"
            f" {_host_was(pauses)}, in {pauses.steps_paused} of {counted(pauses.steps, 'step')}:"
            f" {duration(pauses.cost_ns)} a step."
        )
        advice = advice_on(pauses.kind if pauses.kind in (stalls.GC, stalls.LOADER) else "pause")
        found.append(
            Finding(
                "pause", text, pauses.cost_ns, pauses.worker, pauses.ranks[0] if one else None,
                pauses.phase, advice=advice, saves_ns=causes.without(pauses),
            )
        )  # fmt: skip
    return found


def _slow_groups(merged: Merged, causes: Causes) -> list[Finding]:
    """Groups whose transfers are slow, whoever comes last to them."""
    step_ns = mean_step(merged)
    found = []
    for group in causes.groups:
        if group.excess_ns < MIN_SHARE * step_ns:
            continue
        worker, op = group.kind.worker, group.kind.op
        ranks = [merged.ranks[rank] for rank in group.ranks]
        hosts = sorted({rank.host for rank in ranks})
        others = "its sibling's" if group.siblings == 1 else f"its {group.siblings} siblings'"
        usual = f"{others} {duration(group.siblings_ns)}"
        rate, usual_rate = group.bus_gb_per_s, group.siblings_gb_per_s
        rates = f" ({round(rate, 1)} against {round(usual_rate, 1)} GB/s)" if rate and usual_rate else ""
        text = (
            f"The links of {worker} {_listed('rank', [rank.rank for rank in ranks])}"
            f" ({_listed('node', hosts)}) are slow: {op} in their {group.kind.group} takes"
            f" {duration(group.transfer_ns)} a call once all have come, {usual}{rates}. That is"
            f" {duration(group.excess_ns)} a step."
        )
        saves = causes.with_other_links(group)
        found.append(Finding("slow_group", text, group.excess_ns, worker, group.ranks[0], saves_ns=saves))
    return found[:MAX_STRAGGLERS]


def _listed(what: str, names: Sequence[object]) -> str:
    """At most `MAX_MISSING` of them."""
    shown = [str(name) for name in names[:MAX_MISSING]]
    if len(names) > MAX_MISSING:
        return f"{what}s {', '.join(shown)}, …"
    more = f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"{what} {shown[0]}" if len(shown) == 1 else f"{what}s {more}"


def _tails(stragglers: Sequence[StragglerRow], merged: Merged, causes: Causes) -> list[Finding]:
    """Phases whose slowest rank, not always the same one, keeps the others waiting. How long each rank took
    needs no clock; what the step would lose does, and is left out where hosts' clocks are not aligned.
    """
    slow = {(merged.ranks[s.rank].worker, s.phase) for s in stragglers}
    even = {(w.worker, w.phase): w for w in causes.changes if w.kind == "even"}
    untold = not causes.windows and any(merged.clocks.shared_by(rank.host) for rank in merged.ranks)
    found = []
    for (worker, phase), steps in _own_times(merged).items():
        times = [(max(each), max(median_low(each), 1)) for each in steps.values() if len(each) > 1]
        if not times or median(longest / usual for longest, usual in times) < UNEVEN:
            continue
        longest, usual = (sum(values) / len(times) for values in zip(*times, strict=True))
        change = even.get((worker, phase))
        share = (longest - usual) / max(mean_step(merged), 1) if untold else change.share if change else 0.0
        if (worker, phase) in slow or share < MIN_SHARE:
            continue
        text = (
            f"{phase} has a long tail on {worker}: its slowest rank, not always the same one, takes"
            f" {duration(longest)}, the median one {duration(usual)} ({counted(len(times), 'step')})."
        )
        if untold:
            text += " What a step would lose without it is untold, for hosts' clocks are not aligned."
        step, rank = causes.worst(worker, phase)
        cost, saves = round(longest - usual), change.saves_ns if change else None
        found.append(Finding("tail", text, cost, worker, rank, phase, saves_ns=saves, step=step))
    return found


def _own_times(merged: Merged) -> dict[tuple[str, str], dict[int, list[int]]]:
    """Worker and phase of rollout -> step -> what each rank took, without waiting in collectives."""
    found: dict[tuple[str, str], dict[int, list[int]]] = {}
    for row in merged.steps:
        for part in () if row.rank.is_controller else row.phases:
            if part.phase in ROLLOUT and not part.pipeline_ns:
                steps = found.setdefault((row.rank.worker, part.phase), {})
                own = (part.duration_ns - part.communication_ns) // (row.count or 1)
                steps.setdefault(row.step, []).append(own)
    return found


def _exposed_sync(causes: Causes) -> list[Finding]:
    change = next((w for w in causes.changes if w.kind == "overlapped" and w.share >= MIN_SHARE), None)
    if change is None:
        return []
    step, rank = causes.worst(change.worker, change.phase)
    text = (
        f"weight_sync is exposed: {duration(change.saves_ns)} a step ({percent(change.share)}) in which the"
        f" step waits for {change.worker} and nothing hides it."
    )
    saves = change.saves_ns
    return [
        Finding("weight_sync", text, saves, change.worker, rank, "weight_sync", saves_ns=saves, step=step)
    ]


def _rollout(rollout: Rollout | None, by_request: bool) -> list[Finding]:
    """What the engines say of generation: the last requests that all wait for, unless each one is told, and a
    cache that is too small.
    """
    if rollout is None:
        return []
    found = []
    for done in () if by_request else rollout.done:
        if done.share not in (0.9, 0.95) or done.left < MIN_LEFT * (1 - done.share):
            continue
        share = done.saves_ms / max(rollout.step_ms, 1e-9)
        if share >= MIN_SHARE:
            cost = round(1e6 * done.saves_ms)
            text = (
                f"Generation waits for its last requests: when {percent(done.share)} were done it went on"
                f" for {duration(cost)} a step ({percent(done.left)} of the phase, {percent(share)} of the"
                f" step), mean of {counted(done.steps, 'step')}."
            )
            found = [Finding("last_requests", text, cost, phase="generation", saves_ns=cost)]
    if rollout.preempted >= max(1.0, MIN_PREEMPTED * rollout.batch_peak):
        text = (
            f"The engines' KV cache is too small: {rollout.preempted:.0f} requests a step are preempted"
            f" and computed again, in {rollout.steps_preempted} of {counted(rollout.steps, 'step')};"
            f" at its fullest the cache is {percent(rollout.cache_peak)} full."
        )
        found.append(Finding("preemption", text, 0, phase="generation"))
    return found


def _idle_workers(merged: Merged, bubbles: Sequence[Bubble], turns: set[tuple[str, str]]) -> list[Finding]:
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
            if (worker, phase) in turns:
                text += " They take turns by design, as in every synchronous loop."
            found.append(Finding("bubble", text, round(mean), worker, phase=phase))
    return found


def _untold_gpus(merged: Merged) -> list[Finding]:
    """That workers which take turns may do so on one GPU: then neither stands idle."""
    marking = {row.rank.role for row in merged.steps if row.phases and not row.rank.is_controller}
    pairs = {pair: hosts for pair, hosts in maybe_sharing(merged.steps).items() if pair <= marking}
    if not pairs:
        return []
    workers = sorted(set().union(*pairs))
    hosts = sorted(set().union(*pairs.values()))
    where = f" of {hosts[0]}" if len(hosts) == 1 and hosts[0] else ""
    text = (
        f"Whether {' and '.join(workers)} share GPUs{where} cannot be told, for not all of their reports say"
        " which GPU it was. So it is not said whether one stands idle while another is in a phase."
    )
    return [Finding("untold_gpus", text, 0, workers[0])]


def _pipelines(rows: Sequence[PipelineRow], merged: Merged) -> list[Finding]:
    """Phases whose stages wait for each other, and the stage that computes longest where they are uneven."""
    found = []
    for worker, phase in sorted({(row.worker, row.phase) for row in rows}):
        stages = [row for row in rows if (row.worker, row.phase) == (worker, phase)]
        ranks = sum(row.ranks for row in stages)
        lost = sum((row.waiting_ns + row.idle_ns) * row.ranks for row in stages) / ranks
        share = lost * ranks / max(sum(row.window_ns * row.ranks for row in stages), 1)
        mine = [row.duration_ns / (row.count or 1) for row in merged.steps if row.rank.worker == worker]
        if not mine or lost < MIN_SHARE * sum(mine) / len(mine):
            continue
        text = (
            f"{worker}'s GPUs stand in pipeline bubbles for {percent(share)} of {phase}: {duration(lost)} a"
            f" step, mean of {counted(ranks, 'rank')} of {counted(stages[0].stages, 'stage')}."
        )
        usual = median_low(row.compute_ns for row in stages)  # of two, the shorter
        longest = max(stages, key=lambda row: row.compute_ns)
        if len(stages) > 1 and longest.compute_ns >= UNEVEN * usual > 0:
            waits = "that one waits" if len(stages) == 2 else "the others wait"
            text += (
                f" Stage {longest.stage} computes {longest.compute_ns / usual:.2f} times as long as the"
                f" {'other' if len(stages) == 2 else 'median'} one, and {waits} for it."
            )
        found.append(Finding("pipeline", text, round(lost), worker, phase=phase))
    return found


def _unexplained(merged: Merged, waits: Sequence[Waiting]) -> list[Finding]:
    lengths = {(row.rank, row.step): (row.duration_ns, row.count or 1) for row in merged.steps}
    marking = {row.rank.worker for row in merged.steps if row.phases}
    rows = [w for w in waits if not w.rank.is_controller and (not marking or w.rank.worker in marking)]
    if not rows:
        return []
    found = _not_captured(
        rows, lengths, sorted({rank.worker for rank in merged.ranks if not rank.is_controller} - marking)
    )
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


def _not_captured(rows: Sequence[Waiting], lengths: Lengths, silent: Sequence[str]) -> list[Finding]:
    """What cannot be said because a worker was not recorded, or is one of the `silent`, which were and mark
    no phase: no cost, for nothing is known of it.
    """
    lost, share = _a_step([w.uncaptured_ns for w in rows], rows, lengths)
    if share < 2 * MIN_SHARE:
        return []
    workers = sorted({w.rank.worker for w in rows if w.uncaptured_ns})
    text = (
        f"For {duration(lost)} of a step ({percent(share)}) {' and '.join(workers)}"
        f" {'is' if len(workers) == 1 else 'are'} in no phase "
        + (
            f"and reports of {' and '.join(silent)} have none: whether this is idle time cannot be told. Mark"
            " phases there with prof.range(), and capture all workers in the same steps."
            if silent
            else "while other workers were not captured: whether this is idle time cannot be told. Capture"
            " all workers in the same steps."
        )
    )
    return [Finding("uncaptured", text, 0, workers[0] if workers else "")]


def _skewed(skews: Sequence[SkewRow], merged: Merged, groups: Sequence[SlowGroup]) -> list[Finding]:
    """Who comes last, unless its slow links held it up before."""
    held_up = {rank for group in groups for rank in group.ranks}
    least = MIN_SKEW * sum(row.duration_ns for row in merged.steps) / max(len(merged.steps), 1)
    found = []
    for skew in skews[:1]:
        cost = skew.waiting_ns * skew.calls // skew.steps
        if (
            cost < least
            or skew.last is None
            or skew.last in held_up
            or skew.last_share < min(0.9, 1 / skew.ranks + 0.35)
        ):  # well above chance
            continue
        text = (
            f"{merged.ranks[skew.last].label} comes last to {percent(skew.last_share)} of"
            f" {skew.worker}'s {skew.key} collectives; the ranks wait {duration(cost)} a step in them,"
            f" beside {duration(skew.transfer_ns * skew.calls / skew.steps)} of transfer."
        )
        found.append(Finding("skew", text, cost, skew.worker, skew.last))
    return found
