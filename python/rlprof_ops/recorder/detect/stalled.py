"""Finds collectives that wait for a rank that does not come: who it is, and what it does instead.

A rank that computes, reads or writes will come: a checkpoint, an evaluation, a compilation. There is a word
about it only when nearly half of the group's timeout is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from rlprof_ops.host.ports import Connection
from rlprof_ops.recorder.detect.anomaly import HANG, LONG_WAIT, Anomaly
from rlprof_ops.recorder.samples.family_work import WORKING_CORES, WORKING_MIB_S
from rlprof_ops.recorder.samples.rank_states import ALONE, RankState
from rlprof_ops.runtime.on_demand.group_state import LOOK_S, STILL_S
from rlprof_ops.words import duration, ranks_text, size

# Shares of the group's timeout: with looks 5 s apart, all is said before half of it.
_SUSPECT, _ALL_THERE, _LATE = 0.25, 0.4, 0.45
_MOST_SUSPECTS = 4
_BUSY_CORES = 0.5  # of a process without a group, for which the missing rank may wait
_STOPPED = {
    "": "is gone",
    "T": "is stopped (SIGSTOP)",
    "Z": "has died and is not reaped (zombie)",
}
_Placed = tuple[str, RankState]
_SURE_NS = int(2 * LOOK_S * 1e9)


def stalled(
    states: Mapping[str, Iterable[RankState]],
    suspect_s: float,
    t_ns: int,
    engines_work: bool = False,
    clock_still_s: float = math.inf,
    gpu_faults: Mapping[str, Iterable[str]] | None = None,
) -> list[Anomaly]:
    """What stands in each world, of a node's processes by node; the same key as long as it is the same wait.

    `suspect_s`: how long a collective may be open before it is looked at. `engines_work`: a server makes
    tokens. `clock_still_s`: since when no step or phase of the job has begun or ended. `gpu_faults`: what may
    be wrong with a node's GPUs, as sentences.
    """
    names = {state.here: node for node, found in states.items() for state in found if state.here}
    placed = [(node, _named(state, names)) for node, found in states.items() for state in found]
    placed.sort(key=lambda each: -each[1].still_s)  # of two processes of a rank the later one counts
    worlds: dict[str, dict[int, _Placed]] = {}
    for node, state in placed:
        if state.rank != ALONE:
            worlds.setdefault(state.world, {})[state.rank] = node, state
    found = []
    for world, ranks in worlds.items():
        elsewhere = engines_work or any(is_working(state) for _, state in placed if state.world != world)
        finding = _judged(ranks, suspect_s, t_ns, elsewhere, clock_still_s)
        if finding is not None:
            found.append(_with_suspects(finding, ranks, gpu_faults or {}))
    return found


def _with_suspects(
    finding: Anomaly, ranks: Mapping[int, _Placed], faults: Mapping[str, Iterable[str]]
) -> Anomaly:
    """Say whose GPUs are not well and whose connections do not move: of missing ranks that are neither
    stopped nor gone, and of all ranks where none is missing.
    """
    concerned = {rank: ranks[rank] for rank in finding.ranks or sorted(ranks)}
    one = _is_one({rank: state for rank, (_, state) in ranks.items() if state.group})
    if not one or any(state.state in _STOPPED for _, state in concerned.values()):
        return finding
    told = [fault for node in {node: 0 for node, _ in concerned.values()} for fault in faults.get(node, ())]
    for rank, (_, state) in concerned.items():
        told += [_stuck(rank, each) for each in state.stuck if each.unsent or not finding.ranks]
    if not told:
        return finding
    named = "" if finding.ranks else "suspect: "
    text = f"{finding.text}; {named}{'; '.join(told[:_MOST_SUSPECTS])}"
    return replace(finding, text=text, evidence={**finding.evidence, "suspects": told})


def _stuck(rank: int, link: Connection) -> str:
    bytes_ = [
        f"{size(count)} {what}" for count, what in ((link.unsent, "unsent"), (link.unread, "unread")) if count
    ]
    return f"rank {rank}'s connection to {link.peer} has {' and '.join(bytes_)}"


def _named(state: RankState, names: Mapping[str, str]) -> RankState:
    """With nodes in the place of their addresses."""

    def name(peer: str) -> str:
        host, _, port = peer.rpartition(":")
        return f"{names[host]}:{port}" if host in names else peer

    stuck = tuple(replace(each, peer=name(each.peer)) for each in state.stuck)
    return replace(state, awaits=name(state.awaits), stuck=stuck)


def is_working(state: RankState) -> bool:
    """Whether a process that waits in no collective computes, reads or writes."""
    least = _BUSY_CORES if state.rank == ALONE else WORKING_CORES
    return not state.group and (state.cores >= least or state.mib_s >= WORKING_MIB_S)


def _goes_on(state: RankState, limit_s: float) -> bool:
    """Whether a missing rank works, or has done so in the time that a hang takes to be said: storage that is
    slow keeps one that saves for many seconds.
    """
    return is_working(state) or state.idle_s < limit_s


def _judged(
    ranks: Mapping[int, _Placed], suspect_s: float, t_ns: int, elsewhere: bool, clock_still_s: float
) -> Anomaly | None:
    waiting = {rank: state for rank, (_, state) in ranks.items() if state.group}
    first = max(waiting.values(), key=lambda state: state.still_s, default=None)
    if first is None:
        return None
    timeout_s = min((state.timeout_s for state in waiting.values() if state.timeout_s), default=0.0)
    waited_s = first.still_s
    limit_s = min(suspect_s, _SUSPECT * timeout_s or suspect_s)
    if waited_s < limit_s:
        return None
    members = sorted({rank for state in waiting.values() for rank in state.members})
    missing = [rank for rank in members if rank not in waiting]
    told = {rank: ranks[rank] for rank in missing if rank in ranks}
    dead = {rank: placed for rank, placed in told.items() if placed[1].state in _STOPPED}
    if any(state.state != "T" and first.told_ns < state.told_ns + _SURE_NS for _, state in dead.values()):
        return None  # it may have ended after the collective: nobody has told since that it is open
    if any(ranks[rank][1].still_s < STILL_S for rank in members if rank in ranks and rank not in dead):
        return None  # a collective has begun or ended meanwhile
    if not missing and _is_one(waiting) and waited_s < _ALL_THERE * timeout_s:
        return None  # it may be large
    held = {rank: placed for rank, placed in told.items() if _goes_on(placed[1], limit_s)}
    moves = bool(held) or len(told) < len(missing) or elsewhere or clock_still_s < limit_s
    kind = LONG_WAIT if moves and not dead else HANG
    if kind == LONG_WAIT and not (timeout_s and waited_s >= _LATE * timeout_s):
        return None
    late = f", and the group's timeout is {duration(timeout_s * 1e9)}" if kind == LONG_WAIT else ""
    if not missing:
        return _finding(kind, _circle(waiting) + late, first, {}, t_ns)
    named = dead or held or told
    who = "; ".join(_said(*placed) for placed in [*named.values()][:4])
    if len(named) > 4:
        who += f"; so do {len(named) - 4} more"
    unknown = [rank for rank in missing if rank not in told]
    who = who or f"{ranks_text(unknown)} may be missing, of which nothing is known"
    text = f"{who}: {ranks_text(waiting)} {'has' if len(waiting) == 1 else 'have'} waited {_in(first)}{late}"
    return _finding(kind, text, first, named, t_ns)


def _finding(kind: str, text: str, first: RankState, named: Mapping[int, _Placed], t_ns: int) -> Anomaly:
    key = f"{kind}:{first.world}:{first.group}:{first.sequence}"
    evidence = {
        "still_s": first.still_s,
        "timeout_s": first.timeout_s,
        "world": first.world,
        "sequence": first.sequence,
        "missing": [
            {"said": _said(node, state), "node": node, **asdict(state)} for node, state in named.values()
        ],
    }
    node, state = next(iter(named.values()), ("", first))
    return Anomaly(kind, text, key, t_ns, 0, state.worker, tuple(named), node, "", evidence)


def _in(state: RankState) -> str:
    return f"{duration(state.still_s * 1e9)} in {_collective(state)}"


def _collective(state: RankState) -> str:
    return f"{state.operation} #{state.sequence} of {state.group}"


def _is_one(waiting: Mapping[int, RankState]) -> bool:
    return len({_collective(state) for state in waiting.values()}) == 1


def _circle(waiting: Mapping[int, RankState]) -> str:
    """Nobody is missing: all wait in one collective, or for each other."""
    places: dict[str, list[int]] = {}
    for rank, state in sorted(waiting.items()):
        places.setdefault(_in(state) if _is_one(waiting) else _collective(state), []).append(rank)
    said = [f"{ranks_text(ranks)} in {what}" for what, ranks in places.items()]
    if not _is_one(waiting):
        return f"ranks wait for each other: {'; '.join(said[:4])}"
    longest = max(waiting.values(), key=lambda state: state.still_s)
    return f"nobody is missing: {ranks_text(waiting)} have waited {_in(longest)}"


def _said(node: str, state: RankState) -> str:
    who = ", ".join(filter(None, (state.worker, state.task, f"node {node}", f"pid {state.pid}")))
    return f"rank {state.rank} ({who}) {_does(state)}"


def _does(state: RankState) -> str:
    if state.state in _STOPPED:
        return _STOPPED[state.state]
    if is_working(state):
        does = [f"{state.cores:.0%} of a core"] if state.cores >= WORKING_CORES else []
        does += (
            [f"{size(state.mib_s * (1 << 20))} a second read and written"]
            if state.mib_s >= WORKING_MIB_S
            else []
        )
        return f"is working ({', '.join(does)}){f' {state.at}' if state.at else ''}"
    if state.awaits:
        return f"waits for an answer of {state.awaits}{f' {state.at}' if state.at else ''}"
    if state.state == "D":
        return f"is in an uninterruptible wait, as for a disk (state D){f' {state.at}' if state.at else ''}"
    return f"is {state.at}" if state.at else "does nothing"
