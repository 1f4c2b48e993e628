"""Collectives of all ranks together: how much of their time is transfer, how much waiting for the last to
come, and how fast they move data without that waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import NamedTuple

import numpy as np

from rlprof_ops.analyze.metrics.collective_events import CollectiveEvents, one_communicator
from rlprof_ops.analyze.metrics.kernels import CollectiveTotal, plain_op
from rlprof_ops.analyze.report_model import CollectiveRow, SkewRow
from rlprof_ops.analyze.run.clocks import match_rows
from rlprof_ops.analyze.run.merge import Merged, Rank, rank_of
from rlprof_ops.analyze.run.process_summary import Summary

MAX_RANKS = 64  # matched a communicator: enough to find the last comer of any size of job by sampling

SLOW = 1.5  # times the transfer of its siblings, from which on a group counts as slow
ALIKE = 1.1  # mean messages of groups whose transfers can be compared differ by less


class GroupMember(NamedTuple):
    """One rank of a communicator in one window. `steps`: of that window."""

    events: CollectiveEvents
    host: str
    world_rank: int
    steps: int


Members = dict[Rank, GroupMember]
Skews = Mapping[tuple[str, str, str], SkewRow]  # by worker, key and communicator
Parts = list[tuple[Summary, CollectiveTotal]]


class CollectiveKind(NamedTuple):
    """What makes collectives comparable; `group` describes communicators, `size` is the ranks in each."""

    worker: str
    op: str
    group: str
    size: int
    dtype: str


@dataclass(frozen=True)
class SlowGroup:
    """A communicator whose transfers take longer than those of its siblings: other ranks that do the same
    with messages of the same size. `ranks` are the captured ones, as indices.
    """

    kind: CollectiveKind
    key: str  # as of `CollectiveEvents`, "" where no call was matched
    communicator: str
    ranks: tuple[int, ...]
    transfer_ns: int  # mean of a call
    siblings: int
    siblings_ns: int  # their median
    bus_gb_per_s: float | None
    siblings_gb_per_s: float | None
    excess_ns: int  # of a step, that nothing hides


def collective_skews(merged: Merged) -> Skews:
    """Skew of every communicator that at least two captured ranks share, in the window with most of its
    calls; the most waited for first.
    """
    windows: dict[tuple[str, str, str, int | None], Members] = {}
    for summary in merged.summaries:
        for meeting in summary.collective_events:
            where = (summary.report.worker, meeting.key, meeting.communicator, summary.report.start)
            members = windows.setdefault(where, {})
            known = members.get(rank_of(summary))
            if known is None or len(meeting.start) > len(known.events.start):
                steps = sum(step.count or 1 for step in summary.steps)
                members[rank_of(summary)] = GroupMember(meeting, summary.host, summary.world_rank, steps)
    largest: dict[tuple[str, str, str], Members] = {}
    for (worker, key, communicator, _), members in windows.items():
        size = max(member.events.size for member in members.values())
        if len(members) > 1 and one_communicator([each.world_rank for each in members.values()], size):
            best = largest.get((worker, key, communicator), {})
            if _calls(members) > _calls(best):
                largest[worker, key, communicator] = members
    found = {
        where: skew
        for where, members in largest.items()
        if (skew := _skew(where[0], where[1], members, merged))
    }
    return dict(sorted(found.items(), key=lambda item: -item[1].waiting_ns * item[1].calls))


def _calls(members: Members) -> int:
    return sum(len(member.events.start) for member in members.values())


def _skew(worker: str, key: str, members: Members, merged: Merged) -> SkewRow | None:
    """One communicator's collective over its matched calls.

    Transfer is the shortest of the ranks' times in one call (the last comer waits for nobody); the rest of
    each rank's time is waiting. It needs no clock. `last` is who came last most often, by starts on the
    aligned clock, and is None where the mean skew of the starts is below the clocks' residual or that
    residual is unknown between hosts.
    """
    ranks = sorted(members)[:MAX_RANKS]
    base = members[ranks[0]].events
    rows = np.arange(len(base.start))
    matched: dict[Rank, dict[int, int]] = {ranks[0]: {int(i): int(i) for i in rows}}
    for rank in ranks[1:]:
        pairs = match_rows(base, members[rank].events)
        if pairs is not None:
            matched[rank] = dict(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))
    shared = sorted(set.intersection(*(set(m) for m in matched.values())))
    if len(matched) < 2 or not shared:
        return None
    starts, durations = [], []
    for rank in matched:
        meeting = members[rank].events
        mine = np.array([matched[rank][i] for i in shared])
        starts.append(merged.clocks.of(members[rank].host).all_aligned(meeting.start[mine]))
        durations.append(meeting.end[mine] - meeting.start[mine])
    start, duration = np.array(starts), np.array(durations)
    transfer = duration.min(axis=0)
    skew = float((start.max(axis=0) - start.min(axis=0)).mean())
    hosts = {members[rank].host for rank in matched}
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
        steps=max(1, *(members[rank].steps for rank in matched)),
        transfer_ns=round(float(transfer.mean())),
        waiting_ns=round(float((duration - transfer).mean())),
        skew_ns=round(skew),
        last=last,
        last_share=round(share, 5),
        members=[merged.index[rank] for rank in matched],
    )


def slow_groups(merged: Merged, skews: Skews) -> list[SlowGroup]:
    """Groups with slow links, the dearest first. Who is late makes no group slow: its transfer is what is
    left when the last rank has come.
    """
    found = []
    for kind, groups in _by_communicator(merged.summaries).items():
        told = {
            name: (_row(kind, parts, _skews_of(skews, kind, name).values()), parts)
            for name, parts in groups.items()
            if name and one_communicator([s.world_rank for s in _one_each(parts)], kind.size)
        }
        for name, (row, parts) in told.items():
            alike = [
                other
                for other, (sibling, _) in told.items()
                if other != name
                and max(_message(row), _message(sibling)) <= ALIKE * min(_message(row), _message(sibling))
            ]
            usual = median_low([told[other][0].transfer_ns for other in alike] or [row.transfer_ns])
            if row.transfer_ns <= SLOW * usual:
                continue
            ranks = tuple(sorted({merged.index[rank_of(summary)] for summary, _ in parts}))
            lost = _exposed(merged, ranks) * (row.transfer_ns - usual)
            rates = [rate for other in alike if (rate := told[other][0].bus_gb_per_s)]
            key = next(iter(_skews_of(skews, kind, name)), "")
            found.append(
                SlowGroup(
                    kind, key, name, ranks, row.transfer_ns, len(alike), usual, row.bus_gb_per_s,
                    round(median(rates), 3) if rates else None,
                    round(lost * row.count / max(_steps(merged, ranks), 1)),
                )
            )  # fmt: skip
    return sorted(found, key=lambda group: -group.excess_ns)


def _one_each(parts: Parts) -> list[Summary]:
    """One report of every rank: several windows of one are no second rank."""
    return list({rank_of(summary): summary for summary, _ in parts}.values())


def _message(row: CollectiveRow) -> float:
    return (row.message_bytes or 0) / max(row.count, 1)


def _steps(merged: Merged, ranks: Sequence[int]) -> int:
    """Of all these ranks together."""
    return sum(row.count or 1 for row in merged.steps if row.rank.index in ranks)


def _exposed(merged: Merged, ranks: Sequence[int]) -> float:
    """The share of their communication that nothing hides."""
    times = [row.gpu for row in merged.steps if row.rank.index in ranks and row.gpu]
    whole = sum(time.communication_ns for time in times)
    return sum(time.exposed_communication_ns for time in times) / whole if whole else 0.0


def _by_communicator(read: Iterable[Summary]) -> dict[CollectiveKind, dict[str, Parts]]:
    found: dict[CollectiveKind, dict[str, Parts]] = defaultdict(lambda: defaultdict(list))
    for summary in read:
        for total in summary.collectives:
            kind = CollectiveKind(summary.report.worker, total.op, total.group, total.group_size, total.dtype)
            found[kind][total.communicator].append((summary, total))
    return found


def _skews_of(skews: Skews, kind: CollectiveKind, communicator: str) -> dict[str, SkewRow]:
    """Those of one communicator of a kind, by their keys: two operations may have one plain name."""
    found = {}
    for (worker, key, name), skew in skews.items():
        group, _, op = key.rpartition("/")
        if (worker, plain_op(op), group, name) == (*kind[:3], communicator):
            found[key] = skew
    return found


def collective_rows(
    read: Iterable[Summary], skews: Skews, slow: Sequence[SlowGroup] = ()
) -> list[CollectiveRow]:
    """Communication kernels over all ranks of a worker, the longest first; bandwidths where the traces say
    how much was sent. A slow group is a row of its own.
    """
    apart = {(group.kind, group.communicator): group for group in slow}
    found = []
    for kind, groups in _by_communicator(read).items():
        rest: Parts = []
        others: list[SkewRow] = []
        for name, parts in groups.items():
            mine = list(_skews_of(skews, kind, name).values())
            if group := apart.get((kind, name)):
                found.append(_row(kind, parts, mine, group.ranks))
            else:
                rest += parts
                others += mine
        if rest:
            found.append(_row(kind, rest, others))
    return sorted(found, key=lambda row: -row.total_ns)


def _row(
    kind: CollectiveKind, parts: Parts, skews: Collection[SkewRow], ranks: Sequence[int] = ()
) -> CollectiveRow:
    totals = [total for _, total in parts]
    count, total_ns = sum(part.count for part in totals), sum(part.total_ns for part in totals)
    transfer_ns = min(_transfer(totals, count, skews), total_ns)
    message_bytes = sum(part.message_bytes for part in totals)
    return CollectiveRow(
        *kind,
        count=count,
        total_ns=total_ns,
        min_ns=min(part.min_ns for part in totals),
        transfer_ns=transfer_ns // max(count, 1),
        message_bytes=message_bytes or None,
        algorithm_gb_per_s=_gb_per_s(message_bytes, transfer_ns),
        bus_gb_per_s=_gb_per_s(sum(part.bus_bytes for part in totals), transfer_ns),
        waiting_ns=(total_ns - transfer_ns) // max(count, 1),
        members=list(ranks),
    )


def _gb_per_s(moved_bytes: int, transfer_ns: int) -> float | None:
    """Bytes a nanosecond; None where nothing is known."""
    return round(moved_bytes / transfer_ns, 3) if moved_bytes and transfer_ns else None


def _transfer(parts: Sequence[CollectiveTotal], count: int, skews: Collection[SkewRow]) -> int:
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
