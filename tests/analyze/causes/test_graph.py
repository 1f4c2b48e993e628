"""The graph against brute force that shares no code: every path tried, every piece really made longer."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof_ops.analyze.causes.graph import Graph, critical_path, replayed, slacks

Drawn = tuple[list[int], list[int], list[list[int]]]


@st.composite
def drawn_graphs(draw: st.DrawFn) -> Drawn:
    """Durations, lags and predecessors of up to nine pieces, numbered in any order."""
    count = draw(st.integers(1, 9))
    duration = [draw(st.integers(0, 30)) for _ in range(count)]
    lag = [draw(st.integers(0, 9)) for _ in range(count)]
    before = [
        draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3)) if i else [] for i in range(count)
    ]
    name = draw(st.permutations(range(count)))
    moved: Drawn = ([0] * count, [0] * count, [[] for _ in range(count)])
    for i in range(count):
        moved[0][name[i]], moved[1][name[i]] = duration[i], lag[i]
        moved[2][name[i]] = [name[p] for p in before[i]]
    return moved


def length_by_all_paths(duration: list[int], lag: list[int], before: list[list[int]]) -> int:
    """The longest of all paths, each one tried."""

    def paths(last: int) -> list[int]:
        own = lag[last] + duration[last]
        return [own + rest for p in before[last] for rest in paths(p)] or [own]

    return max(cost for last in range(len(duration)) for cost in paths(last))


def measured(duration: list[int], lag: list[int], before: list[list[int]]) -> Graph:
    @cache
    def end(piece: int) -> int:
        return max((end(p) for p in before[piece]), default=100) + lag[piece] + duration[piece]

    ends = [end(i) for i in range(len(duration))]
    starts = [e - d for e, d in zip(ends, duration, strict=True)]
    return Graph(tuple(starts), tuple(ends), tuple(map(tuple, before)), 100)


@settings(max_examples=150, deadline=None)
@given(drawn_graphs())
def test_the_path_is_a_longest_one_and_adds_up_to_the_length(drawn: Drawn) -> None:
    duration, lag, before = drawn
    graph = measured(*drawn)
    path = critical_path(graph)
    assert graph.length == length_by_all_paths(*drawn) == sum(lag[i] + duration[i] for i in path)
    assert not before[path[0]] and all(a in before[b] for a, b in pairwise(path))
    assert replayed(graph, graph.duration) == graph.length


@settings(max_examples=150, deadline=None)
@given(drawn_graphs(), st.data())
def test_slack_is_what_a_piece_may_take_longer(drawn: Drawn, data: st.DataObject) -> None:
    duration, lag, before = drawn
    graph = measured(*drawn)
    slack = slacks(graph)
    piece = data.draw(st.integers(0, len(duration) - 1))
    more = data.draw(st.integers(0, 40))
    longer = [d + more * (i == piece) for i, d in enumerate(duration)]
    grown = length_by_all_paths(longer, lag, before) - length_by_all_paths(duration, lag, before)
    assert grown == max(0, more - slack[piece])
    assert all(slack[i] == 0 for i in critical_path(graph)) and min(slack) == 0


@settings(max_examples=150, deadline=None)
@given(drawn_graphs(), st.data())
def test_a_replay_with_other_times_is_the_longest_path_of_these(drawn: Drawn, data: st.DataObject) -> None:
    duration, lag, before = drawn
    graph = measured(*drawn)
    others = [data.draw(st.integers(0, 60)) for _ in duration]
    lags = [data.draw(st.integers(0, 60)) for _ in duration]
    assert replayed(graph, others) == length_by_all_paths(others, lag, before)
    assert replayed(graph, others, lags) == length_by_all_paths(others, lags, before)


def test_a_circle_is_refused_and_nothing_is_no_length() -> None:
    with pytest.raises(ValueError, match="circle"):
        Graph((0, 0), (1, 1), ((1,), (0,)), 0)
    empty = Graph((), (), (), 5)
    assert empty.length == 0 and critical_path(empty) == [] and slacks(empty) == []
