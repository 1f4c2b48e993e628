"""Unions of intervals against sets of single nanoseconds, the slowest and plainest oracle there is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")

from rlprof_ops.analyze.metrics.intervals import (  # noqa: E402
    Stretches,
    Union,
    common,
    left_free,
    merged,
    union,
    without,
)

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 15)), max_size=12)


def made(pairs: list[tuple[int, int]]) -> tuple[Union, set[int]]:
    start = np.array([a for a, _ in pairs], np.int64)
    end = np.array([a + d for a, d in pairs], np.int64)
    return union(start, end), {t for a, d in pairs for t in range(a, a + d)}


def moments(u: Union) -> set[int]:
    return {t for a, b in zip(u.start.tolist(), u.end.tolist(), strict=True) for t in range(a, b)}


@settings(deadline=None)
@given(PAIRS, st.integers(0, 70), st.integers(0, 70))
def test_union_and_windows(pairs: list[tuple[int, int]], a: int, b: int) -> None:
    u, truth = made(pairs)
    low, high = min(a, b), max(a, b)
    assert moments(u) == truth
    assert u.length == len(truth)
    assert bool((u.start[1:] > u.end[:-1]).all())
    assert u.inside(low, high) == len([t for t in truth if low <= t < high])
    assert moments(u.clipped(low, high)) == {t for t in truth if low <= t < high}
    assert moments(u.gaps(low, high)) == {t for t in range(low, high) if t not in truth}


@settings(deadline=None)
@given(PAIRS, PAIRS)
def test_sets(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    (a, in_a), (b, in_b) = made(one), made(two)
    assert moments(common(a, b)) == in_a & in_b
    assert moments(without(a, b)) == in_a - in_b
    assert moments(merged(a, b)) == in_a | in_b


def moments_of(found: Stretches, row: int) -> set[int]:
    mine = found.row == row
    pairs = zip(found.start[mine].tolist(), found.end[mine].tolist(), strict=True)
    return {t for a, b in pairs for t in range(a, b)}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 25), st.lists(PAIRS, max_size=3)), max_size=5),
    PAIRS,
)
def test_many_rows_at_once(rows: list[tuple[int, int, list[list[tuple[int, int]]]]], pairs: list) -> None:
    other, in_other = made(pairs)
    start, end = (
        np.array(bounds, np.int64) for bounds in ([a for a, _, _ in rows], [a + d for a, d, _ in rows])
    )
    free = left_free(start, end, [[made(one)[0] for one in taken] for _, _, taken in rows])
    lengths = free.inside(other).lengths(len(rows))
    for row, (a, lasts, taken) in enumerate(rows):
        truth = set(range(a, a + lasts)).difference(*(made(one)[1] for one in taken))
        assert moments_of(free, row) == truth
        assert moments_of(free.inside(other), row) == truth & in_other
        assert moments_of(free.outside(other), row) == truth - in_other
        assert moments_of(free.of(np.array([row])), row) == truth
        assert lengths[row] == len(truth & in_other)
