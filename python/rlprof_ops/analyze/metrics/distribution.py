"""How durations are spread: quantiles that merge over ranks, so that no rank has to carry its every call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from rlprof_ops.analyze.columns import Ints
from rlprof_ops.analyze.report_model import DurationSpread

MEDIAN, P90, P99 = 500, 900, 990  # ‰
_POINTS = np.array([*range(25, 1000, 25), P99, 1000], np.int64)


class Distribution(Struct, frozen=True):
    """Some durations: all of them, or where they are many the smallest that `_POINTS` of them do not exceed.

    What one trace says of its own quantiles is exact; those of several are within 2.5 % of the calls.
    """

    count: int
    total: int
    squares: float  # sum of the squares of the distances from the mean
    least: int
    points: tuple[int, ...]

    def at(self, share: int) -> int:
        """The smallest duration that at least `share` ‰ of them do not exceed."""
        reached = np.cumsum(_weights(self))
        return self.points[int(np.searchsorted(reached, _rank(share, self.count)))]

    def row(self) -> DurationSpread:
        """As the report has it; `std_ns` is that of a sample."""
        return DurationSpread(
            total_ns=self.total,
            min_ns=self.least,
            median_ns=self.at(MEDIAN),
            p90_ns=self.at(P90),
            p99_ns=self.at(P99),
            max_ns=self.points[-1],
            std_ns=round(math.sqrt(self.squares / max(self.count - 1, 1))),
        )


def distribution(ordered: Ints) -> Distribution:
    """Of durations in order, at least one."""
    mean = ordered.mean()
    squares, total = float(((ordered - mean) ** 2).sum()), int(ordered.sum())
    count, few = len(ordered), len(ordered) <= len(_POINTS)
    points = ordered if few else ordered[_ranks(count) - 1]
    return Distribution(count, total, squares, int(ordered[0]), tuple(points.tolist()))


def merged_distribution(parts: Sequence[Distribution]) -> Distribution:
    """Of the durations of all parts, at least one."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([np.array(part.points, np.int64) for part in parts])
    order = np.argsort(values, kind="stable")
    values, reached = values[order], np.cumsum(np.concatenate([_weights(part) for part in parts])[order])
    count, total = int(reached[-1]), sum(part.total for part in parts)
    squares = sum(p.squares + p.count * (p.total / p.count - total / count) ** 2 for p in parts)
    if count > len(_POINTS):
        values = values[np.searchsorted(reached, _ranks(count))]
    return Distribution(count, total, squares, min(part.least for part in parts), tuple(values.tolist()))


def by_key(keys: Ints, values: Ints) -> dict[int, Distribution]:
    """Of the values of each key."""
    if not len(keys):
        return {}
    order = np.lexsort((values, keys))
    keys, values = keys[order], values[order]
    firsts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    bounds = zip(firsts.tolist(), [*firsts[1:].tolist(), len(keys)], strict=True)
    return {int(keys[first]): distribution(values[first:last]) for first, last in bounds}


def _rank(share: int, count: int) -> int:
    return -(-count * share // 1000)


def _ranks(count: int) -> Ints:
    ranks: Ints = -(-count * _POINTS // 1000)
    return ranks


def _weights(part: Distribution) -> Ints:
    """Of each point the durations that it stands for."""
    return _weights_of(part.count, len(part.points))


@lru_cache(maxsize=4096)  # ranks call a kernel equally often
def _weights_of(count: int, points: int) -> Ints:
    return np.ones(count, np.int64) if count == points else np.diff(_ranks(count), prepend=0)
