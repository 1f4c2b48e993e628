"""What each rank did between two collectives, from when it has called them: its time without waiting in them.

Who calls a collective last holds the others up. Clocks of nodes differ, so that calls are compared on a node:
on each, the first to call counts as there at the same time as the first on any other. A rank without a peer
on its node, and a node that is slow as a whole, are not told by this.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rlprof_ops.runtime.on_demand.arrivals import Arrivals, MetGroup

# Where nobody goes on before all have come. A broadcast's source comes when it has something to say.
_ALL_MEET = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
_BLOCKS = "gloo"  # a call returns when the collective has ended; others may return when it is in a queue
_Met = tuple[int, int]  # the group's place, the sequence number


@dataclass(frozen=True)
class JointCall:
    """A collective that all members have called. `own`: of each rank since when it was free, and when it
    called (Unix ns, of its node): between the two it did its own work.
    """

    group: MetGroup
    sequence: int
    own: Mapping[int, tuple[int, int]]


class _Call(NamedTuple):
    met: _Met
    operation: str
    t_ns: int


def blocks(group: MetGroup) -> bool:
    """Whether a host that has called a collective of this group waits until it has ended."""
    return group.backend == _BLOCKS


def meetings(told: Mapping[int, tuple[str, Arrivals]], judged: Mapping[MetGroup, int]) -> Iterator[JointCall]:
    """Of the looks of one world's ranks, each with its node, the collectives above the sequence numbers in
    `judged`. Raises ValueError for rows that are none.
    """
    places: dict[MetGroup, int] = {}
    calls = {rank: _calls(each, places, judged) for rank, (_, each) in told.items()}
    called: dict[_Met, dict[int, int]] = {}
    for rank, rows in calls.items():
        for call in rows:
            if call.operation:
                called.setdefault(call.met, {})[rank] = call.t_ns
    groups = list(places)
    nodes = {rank: node for rank, (node, _) in told.items()}
    behind = {
        met: _behind(by_rank, nodes)
        for met, by_rank in called.items()
        if len(by_rank) == len(groups[met[0]].members)
    }
    pairs = {call.met[0] for rows in calls.values() for call in rows if not call.operation}
    apart = {
        place
        for group, place in places.items()
        if all(len({*groups[pair].members} & {*group.members}) < 2 for pair in pairs)
    }
    own: dict[_Met, dict[int, tuple[int, int]]] = {}
    for rank, rows in calls.items():
        for before, call in itertools.pairwise(rows):
            place, sequence = call.met
            if (
                place in apart
                and sequence > judged.get(groups[place], 0)
                and _ALL_MEET.search(call.operation)
            ):
                free_ns = _free_ns(before, call, groups[before.met[0]], behind, rank)
                if free_ns is not None:
                    own.setdefault(call.met, {})[rank] = free_ns, call.t_ns
    for (place, sequence), by_rank in own.items():
        if len(by_rank) > 1:
            yield JointCall(groups[place], sequence, by_rank)


def _calls(told: Arrivals, places: dict[MetGroup, int], judged: Mapping[MetGroup, int]) -> list[_Call]:
    """Those of a rank from the last one on that was judged; of several that were made one, the first."""
    found: list[_Call] = []
    here = [places.setdefault(group, len(places)) for group in told.groups]
    known = [judged.get(group, 0) for group in told.groups]
    calls = told.calls()
    fresh = (n for n, call in enumerate(calls) if call.operation and call.sequence > known[call.group])
    for call in calls[max(0, next(fresh, len(calls)) - 1) :]:
        place = here[call.group]
        if not call.operation or not found or found[-1].met != (place, call.sequence):
            found.append(_Call((place, call.sequence), call.operation, call.t_ns))
    return found


def _behind(by_rank: Mapping[int, int], nodes: Mapping[int, str]) -> dict[int, int]:
    """How many nanoseconds after each rank the last one has called; of those with a peer on their node."""
    first: dict[str, int] = {}
    count: dict[str, int] = {}
    for rank, t_ns in by_rank.items():
        node = nodes[rank]
        first[node] = min(t_ns, first.get(node, t_ns))
        count[node] = count.get(node, 0) + 1
    if len(by_rank) == 1:
        return dict.fromkeys(by_rank, 0)
    late = {rank: t - first[nodes[rank]] for rank, t in by_rank.items() if count[nodes[rank]] > 1}
    last = max(late.values(), default=0)
    return {rank: last - own for rank, own in late.items()}


def _free_ns(
    before: _Call, call: _Call, group: MetGroup, behind: Mapping[_Met, Mapping[int, int]], rank: int
) -> int | None:
    """Since when a rank has done its own work when it calls; None where that is not known."""
    waited, waits = behind.get(before.met, {}).get(rank), behind.get(call.met, {}).get(rank)
    if waited is None or waits is None:
        return None
    if not blocks(group) or before.t_ns + waited > call.t_ns:
        # Its host may run ahead: it has waited for no more than what it is less ahead since.
        waited = min(max(0, waited - waits), call.t_ns - before.t_ns)
    return before.t_ns + waited
