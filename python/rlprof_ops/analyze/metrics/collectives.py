"""Collectives of all ranks together: how much of their time is transfer, how much waiting for the last to
come.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from rlprof_ops.analyze.metrics.collective_events import CollectiveEvents, one_communicator
from rlprof_ops.analyze.run.clocks import match_rows
from rlprof_ops.analyze.run.merge import Merged, Rank, rank_of

MAX_RANKS = 64  # matched a communicator: enough to find the last comer of any size of job by sampling

Members = dict[Rank, tuple[CollectiveEvents, str, int]]  # rank -> its events, its host, its rank in its world


@dataclass(frozen=True)
class CollectiveSkew:
    """One communicator's collective over its matched calls.

    Transfer is the shortest of the ranks' times in one call (the last comer waits for nobody); the rest of
    each rank's time is waiting. It needs no clock. `last` is who came last most often, by starts on the
    aligned clock, and is None where the mean skew of the starts is below the clocks' residual or that
    residual is unknown between hosts.
    """

    worker: str
    key: str
    ranks: int
    calls: int
    transfer_ns: int
    waiting_ns: int  # mean a rank and call
    skew_ns: int  # mean of last start - first start
    last: Rank | None
    last_share: float


def collective_skews(merged: Merged) -> tuple[CollectiveSkew, ...]:
    """Skew of every communicator that at least two captured ranks share; the most waited for first."""
    windows: dict[tuple[str, str, str, int | None], Members] = {}
    for summary in merged.summaries:
        for meeting in summary.collective_events:
            where = (summary.report.worker, meeting.key, meeting.communicator, summary.report.start)
            members = windows.setdefault(where, {})
            known = members.get(rank_of(summary))
            if known is None or len(meeting.start) > len(known[0].start):
                members[rank_of(summary)] = (meeting, summary.host, summary.world_rank)
    largest: dict[tuple[str, str, str], Members] = {}
    for (worker, key, communicator, _), members in windows.items():
        if len(members) > 1 and one_communicator([(rank, events) for events, _, rank in members.values()]):
            best = largest.get((worker, key, communicator), {})
            if _calls(members) > _calls(best):
                largest[worker, key, communicator] = members
    found = [
        skew for (worker, key, _), members in largest.items() if (skew := _skew(worker, key, members, merged))
    ]
    return tuple(sorted(found, key=lambda s: -s.waiting_ns * s.calls))


def _calls(members: Members) -> int:
    return sum(len(events.start) for events, _, _ in members.values())


def _skew(worker: str, key: str, members: Members, merged: Merged) -> CollectiveSkew | None:
    ranks = sorted(members)[:MAX_RANKS]
    base = members[ranks[0]][0]
    rows = np.arange(len(base.start))
    matched: dict[Rank, dict[int, int]] = {ranks[0]: {int(i): int(i) for i in rows}}
    for rank in ranks[1:]:
        pairs = match_rows(base, members[rank][0])
        if pairs is not None:
            matched[rank] = dict(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))
    shared = sorted(set.intersection(*(set(m) for m in matched.values())))
    if len(matched) < 2 or not shared:
        return None
    starts, durations = [], []
    for rank in matched:
        meeting, host, _ = members[rank]
        mine = np.array([matched[rank][i] for i in shared])
        starts.append(merged.clocks.of(host).all_aligned(meeting.start[mine]))
        durations.append(meeting.end[mine] - meeting.start[mine])
    start, duration = np.array(starts), np.array(durations)
    transfer = duration.min(axis=0)
    skew = float((start.max(axis=0) - start.min(axis=0)).mean())
    hosts = {members[rank][1] for rank in matched}
    residual = 0 if len(hosts) == 1 else merged.clocks.residual_ns
    last, share = None, 0.0
    if residual is not None and skew > residual:
        index, count = Counter(start.argmax(axis=0).tolist()).most_common(1)[0]
        last, share = list(matched)[index], count / len(shared)
    return CollectiveSkew(
        worker,
        key,
        len(matched),
        len(shared),
        round(float(transfer.mean())),
        round(float((duration - transfer).mean())),
        round(skew),
        last,
        share,
    )
