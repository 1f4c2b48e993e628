"""Collectives of all ranks together: how much of their time is transfer, how much waiting for the last to
come, and how fast they move data without that waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from rlprof_ops.analyze.metrics.collective_events import CollectiveEvents, one_communicator
from rlprof_ops.analyze.metrics.kernels import CollectiveTotal, plain_op
from rlprof_ops.analyze.report_model import CollectiveRow, SkewRow
from rlprof_ops.analyze.run.clocks import match_rows
from rlprof_ops.analyze.run.merge import Merged, Rank, rank_of
from rlprof_ops.analyze.run.process_summary import Summary

MAX_RANKS = 64  # matched a communicator: enough to find the last comer of any size of job by sampling

Members = dict[Rank, tuple[CollectiveEvents, str, int]]  # rank -> its events, its host, its rank in its world


def collective_skews(merged: Merged) -> tuple[SkewRow, ...]:
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


def _skew(worker: str, key: str, members: Members, merged: Merged) -> SkewRow | None:
    """One communicator's collective over its matched calls.

    Transfer is the shortest of the ranks' times in one call (the last comer waits for nobody); the rest of
    each rank's time is waiting. It needs no clock. `last` is who came last most often, by starts on the
    aligned clock, and is None where the mean skew of the starts is below the clocks' residual or that
    residual is unknown between hosts.
    """
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
        last, share = merged.index[list(matched)[index]], count / len(shared)
    return SkewRow(
        worker=worker,
        key=key,
        ranks=len(matched),
        calls=len(shared),
        transfer_ns=round(float(transfer.mean())),
        waiting_ns=round(float((duration - transfer).mean())),
        skew_ns=round(skew),
        last=last,
        last_share=round(share, 5),
    )


def collective_rows(read: Iterable[Summary], skews: Sequence[SkewRow]) -> list[CollectiveRow]:
    """Communication kernels over all ranks of a worker, the longest first; bandwidths where the traces say
    how much was sent.
    """
    matched: dict[tuple[str, str, str], list[SkewRow]] = {}
    for skew in skews:
        group, _, op = skew.key.rpartition("/")
        matched.setdefault((skew.worker, plain_op(op), group), []).append(skew)
    grouped: dict[tuple[str, str, str, int, str], list[CollectiveTotal]] = {}
    for summary in read:
        for total in summary.collectives:
            key = (summary.report.worker, total.op, total.group, total.group_size, total.dtype)
            grouped.setdefault(key, []).append(total)
    found = []
    for (worker, op, group, size, dtype), parts in grouped.items():
        count = sum(part.count for part in parts)
        transfer_ns = _transfer(parts, count, matched.get((worker, op, group), []))
        message_bytes = sum(part.message_bytes for part in parts)
        found.append(
            CollectiveRow(
                worker=worker,
                op=op,
                group=group,
                group_size=size,
                dtype=dtype,
                count=count,
                total_ns=sum(part.total_ns for part in parts),
                min_ns=min(part.min_ns for part in parts),
                transfer_ns=transfer_ns // max(count, 1),
                message_bytes=message_bytes or None,
                algorithm_gb_per_s=_gb_per_s(message_bytes, transfer_ns),
                bus_gb_per_s=_gb_per_s(sum(part.bus_bytes for part in parts), transfer_ns),
            )
        )
    return sorted(found, key=lambda row: -row.total_ns)


def _gb_per_s(moved_bytes: int, transfer_ns: int) -> float | None:
    """Bytes a nanosecond; None where nothing is known."""
    return round(moved_bytes / transfer_ns, 3) if moved_bytes and transfer_ns else None


def _transfer(parts: Sequence[CollectiveTotal], count: int, skews: Sequence[SkewRow]) -> int:
    """Nanoseconds that all calls take without waiting. A collective is over for all ranks at once, and the
    last to come waits for nobody: the shortest of the ranks' times of a call is its transfer, where calls
    could be matched; else the shortest call of the same message size stands for all of that size.
    """
    calls = sum(skew.calls for skew in skews)
    if calls:
        return count * sum(skew.transfer_ns * skew.calls for skew in skews) // calls
    sizes: dict[int, tuple[int, int]] = {}
    for part in parts:
        for size, number, shortest in part.by_size:
            known, least = sizes.get(size, (0, shortest))
            sizes[size] = known + number, min(least, shortest)
    return sum(number * shortest for number, shortest in sizes.values())
