"""What the requests of engines tell of generation, in words: the last ones, and replicas that stand idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rlprof_ops.analyze.output.gpu_findings import MIN_SHARE
from rlprof_ops.analyze.output.text import counted, duration, percent
from rlprof_ops.analyze.report_model import Finding
from rlprof_ops.analyze.whole_run.rollout import DONE
from rlprof_ops.analyze.whole_run.run_data import LateRequest, ReplicaRow, RolloutRequests

LONG = {0.9: 0.3, 0.95: 0.2}  # share done -> share of the phase after it, from which on it is a long tail
UNEVEN = 0.2  # of the phase: by so much the first replica is done before the last
_MORE = 1.1  # times as many tokens or requests as a peer
_MORE_MS = 1.0  # by which an answer is later than the others to its prompt


def request_findings(requests: RolloutRequests | None) -> list[Finding]:
    """None where no request is told."""
    return [] if requests is None else [*_tail(requests), *_replicas(requests)]


def _tail(requests: RolloutRequests) -> list[Finding]:
    """The later of the two shares whose rest is long."""
    found = []
    for done in requests.done:
        share = done.saves_ms / max(requests.step_ms, 1e-9)
        if done.left < LONG.get(done.share, 1.1) or share < MIN_SHARE:
            continue
        number = DONE.index(done.share)
        worst = max(requests.steps, key=lambda row: (row.left[number] or 0.0) * row.phase_ms)
        # one that comes when the others are done may end after the one that all wait for, or for whose tool
        late = max(worst.last, key=lambda row: row.ms + row.between_ms)
        cost = round(1e6 * done.saves_ms)
        queued = f" and was queued for {duration(1e6 * late.queued_ms)}" if late.queued_ms else ""
        text = (
            f"Generation waits for its last requests: when {percent(done.share)} were done it went on for"
            f" {duration(cost)} a step ({percent(done.left)} of the phase, {percent(share)} of the step),"
            f" mean of {counted(done.steps, 'step')}. The longest wait, in step {worst.step}, is for"
            f" request {late.id} of {late.worker} {late.rank}: it made {counted(late.tokens, 'token')} in"
            f" {duration(1e6 * late.ms)}{queued}, the median one {worst.median_tokens:g}.{_of_sample(late)}"
        )
        found = [Finding("last_requests", text, cost, phase="generation", saves_ns=cost, step=worst.step)]
    return found


def _of_sample(late: LateRequest) -> str:
    """What preemptions, its other turns and the other answers to its prompt tell."""
    said = f" It was preempted {counted(late.preemptions, 'time')}." if late.preemptions else ""
    if late.turn > 1:
        said += (
            f" It is turn {late.turn}; {duration(round(1e6 * late.between_ms))} went by between the turns."
        )
    if late.answers and late.alone_ms >= _MORE_MS:
        said += (
            f" {late.answers - 1} of the {late.answers} answers to its prompt were done"
            f" {duration(round(1e6 * late.alone_ms))} before."
        )
    return said


def _replicas(requests: RolloutRequests) -> Iterator[Finding]:
    """Workers of which one replica is done long before another."""
    groups: dict[str, list[ReplicaRow]] = defaultdict(list)
    for row in requests.replicas:
        if 2 * row.steps > requests.told:
            groups[row.worker].append(row)
    for worker, rows in sorted(groups.items()):
        first, last = min(rows, key=_end), max(rows, key=_end)
        if last.end - first.end < UNEVEN:
            continue
        gain, cost = _even(worker, requests)
        text = (
            f"{worker} {first.rank} is idle for {percent(first.idle)} of generation"
            f" {_because(first, last)}, mean of {counted(requests.told, 'step')}.{gain}"
        )
        yield Finding("uneven_replicas", text, cost, worker, phase="generation")


def _even(worker: str, requests: RolloutRequests) -> tuple[str, int]:
    """What another dealing out of a worker's requests would bring, and its nanoseconds."""
    replay = requests.replay
    found = [row for row in replay.changes if row.kind == "balance"] if replay else []
    if replay is None or replay.worker != worker or not found:
        return "", 0
    [row] = found
    if row.saves_ms < max(MIN_SHARE * requests.step_ms, row.error_ms):
        return " Dealing them out evenly gains nothing.", 0
    cost = round(1e6 * row.saves_ms)
    said = f"{duration(cost)} earlier (error {duration(round(1e6 * row.error_ms))})"
    return f" Evenly dealt out, the phase could end {said}.", cost


def _end(row: ReplicaRow) -> float:
    return row.end


def _because(first: ReplicaRow, last: ReplicaRow) -> str:
    """Why the last replica is done later than the first."""
    peer = f"{last.worker} {last.rank}"
    each, peers = (row.tokens / max(row.requests, 1e-9) for row in (first, last))
    if peers >= _MORE * each:
        return f"because the requests of {peer} are longer: {peers:.0f} tokens each against {each:.0f}"
    if last.requests >= _MORE * first.requests:
        return f"because {peer} has more requests: {last.requests:g} against {first.requests:g}"
    return f"while {peer} takes longer for as many requests of the same length"
