"""How fast collectives move data, without the time in which ranks wait for the last to come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlprof_ops.analyze.metrics.collectives import CollectiveSkew
from rlprof_ops.analyze.metrics.kernels import CollectiveCalls, CollectiveTotal, plain_op


@dataclass(frozen=True)
class Bandwidth(CollectiveCalls):
    """One collective of a worker over all ranks.

    `transfer_ns` is the time that all calls take without waiting. A collective is over for all ranks at once,
    and the last to come waits for nobody: the shortest of the ranks' times of a call is its transfer, where
    calls could be matched; else the shortest call of the same message size stands for all of that size.
    """

    worker: str
    transfer_ns: int

    def rate(self, moved_bytes: int) -> float | None:
        """Bytes a nanosecond, which is GB/s; None where nothing is known."""
        return round(moved_bytes / self.transfer_ns, 3) if moved_bytes and self.transfer_ns else None


def bandwidths(
    totals: Iterable[tuple[str, CollectiveTotal]], skews: Sequence[CollectiveSkew]
) -> list[Bandwidth]:
    """The collectives of all ranks. `totals`: (worker, what one trace says)."""
    matched: dict[tuple[str, str, str], list[CollectiveSkew]] = {}
    for skew in skews:
        group, _, op = skew.key.rpartition("/")
        matched.setdefault((skew.worker, plain_op(op), group), []).append(skew)
    grouped: dict[tuple[str, str, str, int, str], list[CollectiveTotal]] = {}
    for worker, total in totals:
        key = (worker, total.op, total.group, total.group_size, total.dtype)
        grouped.setdefault(key, []).append(total)
    found = []
    for (worker, op, group, size, dtype), parts in grouped.items():
        count = sum(part.count for part in parts)
        found.append(
            Bandwidth(
                worker=worker,
                op=op,
                group=group,
                group_size=size,
                dtype=dtype,
                count=count,
                total_ns=sum(part.total_ns for part in parts),
                min_ns=min(part.min_ns for part in parts),
                message_bytes=sum(part.message_bytes for part in parts),
                bus_bytes=sum(part.bus_bytes for part in parts),
                transfer_ns=_transfer(parts, count, matched.get((worker, op, group), [])),
            )
        )
    return found


def _transfer(parts: Sequence[CollectiveTotal], count: int, skews: Sequence[CollectiveSkew]) -> int:
    calls = sum(skew.calls for skew in skews)
    if calls:
        return count * sum(skew.transfer_ns * skew.calls for skew in skews) // calls
    sizes: dict[int, tuple[int, int]] = {}
    for part in parts:
        for size, number, shortest in part.by_size:
            known, least = sizes.get(size, (0, shortest))
            sizes[size] = known + number, min(least, shortest)
    return sum(number * shortest for number, shortest in sizes.values())
