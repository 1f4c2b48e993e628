"""Paths of operators on every real trace against a walk over its events with a stack, which shares no code,
and what a comparison says of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of, typed
from tests.analyze.metrics.test_launching import events_of, files, span_of
from tests.analyze.shared import mark, write_trace, x

from rlprof_ops.analyze.metrics.call_paths import MOST_PATHS
from rlprof_ops.analyze.output.run_diff import compare

Times = dict[str, tuple[int, int]]  # path -> calls, nanoseconds


def walked(path: Path) -> Times:
    threads: dict[Any, list[tuple[int, int, str]]] = defaultdict(list)
    for event in events_of(path):
        if event.get("cat") in ("cpu_op", "Operator"):
            start, end = span_of(event)
            threads[event["pid"], event["tid"]].append((start, -end, event["name"].removeprefix("aten::")))
    calls, spent = Counter[str](), Counter[str]()
    for ops in threads.values():
        stack: list[tuple[int, str]] = []  # end, path
        for start, end, name in sorted(ops, key=lambda op: op[:2]):
            while stack and stack[-1][0] <= start:
                stack.pop()
            around = f"{stack[-1][1]} → {name}" if stack else name
            stack.append((-end, around))
            calls[around] += 1
            spent[around] += -end - start
    return {path: (calls[path], spent[path]) for path in calls}


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_every_real_trace(path: Path) -> None:
    expected, found = walked(path), answer_of(path, jobs=1, cache=False)["call_paths"]
    assert len(found) >= min(len(expected), MOST_PATHS) - 1
    by_path = defaultdict(list)
    for row in found:
        by_path[row["name"]].append(row)
    for name, rows in by_path.items():
        whole = sum(row["count"] for row in rows), sum(row["total_ns"] for row in rows)
        if len(name) < 400 and (len(found) < MOST_PATHS or not any(row["phase"] for row in found)):
            assert whole == expected[name], name
    times = [row["total_ns"] for row in found]
    assert times == sorted(times, reverse=True)


def layer(at: float, *inner: tuple[str, float]) -> list[dict[str, Any]]:
    """aten::linear with operators in it, one after the other."""
    events, now = [], at + 1
    for name, lasts in inner:
        events.append(x("cpu_op", f"aten::{name}", now, lasts))
        now += lasts + 1
    return [x("cpu_op", "aten::linear", at, now - at), *events]


def paths_of(
    tmp_path: Path, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> dict[str, tuple[str, int]]:
    runs = [
        typed(answer_of(write_trace(tmp_path / name / "w.json", events), jobs=1, cache=False))
        for name, events in (("a", before), ("b", after))
    ]
    told = compare(*runs).paths
    return {change.what.partition(": ")[2]: (change.verdict, change.difference_ns) for change in told}


def test_what_came_what_went_and_what_changed(tmp_path: Path) -> None:
    before = [*layer(0, ("addmm", 100), ("view", 20)), x("cpu_op", "aten::mul", 200, 50)]
    copies = [x("cpu_op", "aten::to", 300, 60), x("cpu_op", "aten::_to_copy", 301, 50)]
    after = [*layer(0, ("addmm", 180), ("view", 20)), *copies]
    assert paths_of(tmp_path, before, before) == {}
    assert paths_of(tmp_path, before, after) == {
        "linear → addmm": ("one step", 80_000),  # says it better than linear
        "to": ("new", 60_000),  # with all that is in it
        "mul": ("gone", -50_000),
    }


def test_a_new_operator_inside_of_an_old_one_is_where_the_time_went(tmp_path: Path) -> None:
    before, after = layer(0, ("addmm", 100)), layer(0, ("contiguous", 70), ("addmm", 100))
    assert paths_of(tmp_path, before, after) == {"linear → contiguous": ("new", 70_000)}


def test_a_phase_and_its_steps_count(tmp_path: Path) -> None:
    """Twice the steps are not twice the time."""
    one = [mark("ProfilerStep#1", 0, 400), *layer(10, ("addmm", 100))]
    two = [*one, mark("ProfilerStep#2", 500, 400), *layer(510, ("addmm", 100))]
    assert paths_of(tmp_path, one, two) == {}


def test_threads_do_not_nest_in_each_other_and_a_report_without_paths_says_nothing(tmp_path: Path) -> None:
    events = [x("cpu_op", "aten::a", 0, 100), x("cpu_op", "aten::b", 10, 20, 1, 2)]
    path = write_trace(tmp_path / "t.json", events)
    answer = answer_of(path, jobs=1, cache=False)
    assert {row["name"]: row["total_ns"] for row in answer["call_paths"]} == {"a": 100_000, "b": 20_000}
    assert compare(typed(answer | {"call_paths": []}), typed(answer)).paths == ()
