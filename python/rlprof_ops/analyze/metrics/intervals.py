"""Unions of time intervals, and how much of any window they cover; all in int64 nanoseconds, nothing
rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from rlprof_ops.analyze.columns import Ints


class Union(Struct, frozen=True, eq=False):
    """Disjoint half-open intervals in order: the union of any set of intervals.

    With `covered(t) = |union ∩ (-∞, t)|`, the length inside a window [a, b) is `covered(b) - covered(a)`, so
    thousands of windows cost two binary searches each.
    """

    start: Ints  # (n,)
    before: Ints  # (n + 1,) length of the union before start[i], and at last of all of it

    def __len__(self) -> int:
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Union)
            and np.array_equal(self.start, other.start)
            and np.array_equal(self.before, other.before)
        )

    def __hash__(self) -> int:
        return hash((self.start.tobytes(), self.before.tobytes()))

    @property
    def length(self) -> int:
        return int(self.before[-1])

    @property
    def end(self) -> Ints:
        """(n,), end[i] < start[i+1]; made when asked for, since a decode-like trace has millions of
        intervals.
        """
        return self.start + (self.before[1:] - self.before[:-1])

    def covered(self, time: Ints) -> Ints:
        """(k,) length of the union before each of k times."""
        if len(self.start) == 0:
            return np.zeros(len(time), np.int64)
        index = np.searchsorted(self.start, time, side="right") - 1
        safe = np.maximum(index, 0)
        before = self.before[safe]
        inside = np.minimum(time - self.start[safe], self.before[safe + 1] - before)
        return np.where(index < 0, 0, before + inside)

    def within(self, start: Ints | int, end: Ints | int) -> Ints:
        """(k,) length of the union inside each of k windows [start, end)."""
        first, last = np.atleast_1d(np.asarray(start, np.int64)), np.atleast_1d(np.asarray(end, np.int64))
        return self.covered(np.maximum(last, first)) - self.covered(first)

    def inside(self, start: int, end: int) -> int:
        return int(self.within(start, end)[0])

    def clipped(self, start: int, end: int) -> Union:
        """The part of the union inside one window."""
        ends = self.end
        keep = (ends > start) & (self.start < end)
        return _disjoint(np.maximum(self.start[keep], start), np.minimum(ends[keep], end))

    def gaps(self, start: int, end: int) -> Union:
        """What of the window [start, end) the union leaves free."""
        part = self.clipped(start, end)
        starts = np.concatenate(([start], part.end))
        ends = np.concatenate((part.start, [end]))
        keep = ends > starts
        return _disjoint(starts[keep], ends[keep])


def union(start: Ints, end: Ints) -> Union:
    """The union of n intervals [start, end); touching ones join, empty and reversed ones count for
    nothing.
    """
    if len(start) == 1 and end[0] > start[0]:
        return _disjoint(start, end)
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if bool((start[1:] > end[:-1]).all()):
        return _disjoint(start, end)
    if not bool((start[1:] >= start[:-1]).all()):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:] - 1, [len(start) - 1]))
    return _disjoint(start[first], reach[last])


def merged(*unions: Union) -> Union:
    """The union of unions; of none, nothing."""
    if not unions:
        return _disjoint(np.empty(0, np.int64), np.empty(0, np.int64))
    return union(np.concatenate([u.start for u in unions]), np.concatenate([u.end for u in unions]))


def common(a: Union, b: Union) -> Union:
    """What lies in both."""
    if len(a) == 0 or len(b) == 0:
        return _disjoint(np.empty(0, np.int64), np.empty(0, np.int64))
    if len(a) == 1 and len(b) == 1:
        start, end = max(a.start[0], b.start[0]), min(a.start[0] + a.before[1], b.start[0] + b.before[1])
        if end <= start:
            return _disjoint(np.empty(0, np.int64), np.empty(0, np.int64))
        return _disjoint(np.array([start], np.int64), np.array([end], np.int64))
    _, start, end = _pieces(a.start, a.end, b)
    return _disjoint(start, end)


def without(a: Union, b: Union) -> Union:
    """What of `a` lies outside `b`."""
    if len(a) == 0 or len(b) == 0:
        return a
    return common(a, b.gaps(int(a.start[0]), int(a.end[-1])))


class Stretches(Struct, frozen=True, eq=False):
    """Stretches of time of many rows in one table: a call for all rows instead of one a row."""

    row: Ints  # (n,) in order
    start: Ints  # (n,)
    end: Ints  # (n,), those of a row disjoint and in order

    def lengths(self, rows: int) -> Ints:
        """(rows,) how long each row's are together."""
        found = np.zeros(rows, np.int64)
        np.add.at(found, self.row, self.end - self.start)
        return found

    def of(self, rows: Ints) -> Stretches:
        """Those of some rows."""
        mine = np.isin(self.row, rows)
        return Stretches(self.row[mine], self.start[mine], self.end[mine])

    def inside(self, union: Union) -> Stretches:
        """What of them lies in a union."""
        place, start, end = _pieces(self.start, self.end, union)
        return Stretches(self.row[place], start, end)

    def outside(self, union: Union) -> Stretches:
        """What of them lies outside a union."""
        if len(self.row) == 0 or len(union) == 0:
            return self
        return self.inside(union.gaps(int(self.start.min()), int(self.end.max())))


def left_free(start: Ints, end: Ints, taken: Sequence[Sequence[Union]]) -> Stretches:
    """What of the window [start, end) of each row none of the row's unions covers."""
    counts = np.array([sum(map(len, unions)) for unions in taken], np.int64)
    row = np.repeat(np.arange(len(taken)), counts)
    parts = [part for unions in taken for part in unions] or [merged()]
    # laid end to end the windows share nothing, so that one union serves all of them
    later = np.cumsum(end - start) - end
    taken_from = np.maximum(np.concatenate([part.start for part in parts]), start[row])
    taken_until = np.minimum(np.concatenate([part.end for part in parts]), end[row])
    busy = union(taken_from + later[row], taken_until + later[row])
    free = Stretches(np.arange(len(start)), start + later, end + later).outside(busy)
    return Stretches(free.row, free.start - later[free.row], free.end - later[free.row])


def _pieces(start: Ints, end: Ints, of: Union) -> tuple[Ints, Ints, Ints]:
    """What of n intervals, in whatever order, lies in a union: the interval's place, start and end of each
    piece.
    """
    union_end = of.end
    first = np.searchsorted(union_end, start, side="right")
    last = np.searchsorted(of.start, end, side="left")
    count = np.maximum(last - first, 0)
    place = np.repeat(np.arange(len(start)), count)
    other = np.arange(len(place)) + np.repeat(first - np.cumsum(count) + count, count)
    return place, np.maximum(start[place], of.start[other]), np.minimum(end[place], union_end[other])


def _disjoint(start: Ints, end: Ints) -> Union:
    if len(start) == 1:
        return Union(start, np.array([0, end[0] - start[0]], np.int64))
    before = np.zeros(len(start) + 1, np.int64)
    (end - start).cumsum(out=before[1:])
    return Union(start, before)
