"""Properties of requests: what is printed reads back, counts agree with counting, and nothing but
RequestError is raised.
"""

from __future__ import annotations

import itertools
import json
from fnmatch import fnmatchcase
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.request.strategies import WORKERS, near_requests, plain_data, requests, steps, windows

from rlprof_ops.request import (
    ProfileRequest,
    RequestError,
    Steps,
    Window,
    load_request,
    plan,
    request_from_dict,
    request_from_json,
)
from rlprof_ops.request.yaml_file import parse_yaml, request_yaml

step_texts = st.text(st.sampled_from("0123456789:,- []x"), max_size=14)


@given(steps())
def test_printed_steps_read_back_as_themselves(found: Steps) -> None:
    assert Steps.parse(str(found)) == found
    assert str(Steps.parse(str(found))) == str(found)


@given(step_texts)
def test_parse_print_parse_of_any_text(text: str) -> None:
    try:
        found = Steps.parse(text)
    except RequestError:
        return
    assert Steps.parse(str(found)) == found
    runs = found.runs
    assert all(a.stop is not None and a.stop < b.start for a, b in itertools.pairwise(runs)), (
        "disjoint, not adjacent"
    )


@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 9))
def test_strides_are_python_ranges(start: int, length: int, stride: int) -> None:
    found = Steps.parse(f"{start}:{start + length}:{stride}")
    assert [n for n in range(1, 130) if n in found] == list(range(start, start + length, stride))


@given(steps(), steps(), st.integers(1, 80))
def test_steps_are_sets(one: Steps, other: Steps, step: int) -> None:
    assert (step in one.minus(other)) == (step in one and step not in other)
    assert (step in one.intersect(other)) == (step in one and step in other)
    assert one.minus(other) == Steps.of(one.minus(other).runs), "still canonical"


@given(st.lists(windows(may_be_open=False), max_size=4), st.integers(1, 80))
def test_windows_are_the_maximal_runs(parts: list[Window], last: int) -> None:
    wanted = sorted({n for w in parts for n in range(w.start, w.stop or 0) if n <= last})
    runs = [n for n in wanted if n - 1 not in wanted]
    found = Steps.of(parts).windows(last)
    assert [w.start for w in found] == runs
    assert [n for w in found for n in range(w.start, w.stop or 0)] == wanted


@given(requests())
def test_requests_survive_json_and_yaml(request: ProfileRequest) -> None:
    assert request_from_json(request.to_json()) == request
    assert "\n" not in request.to_json()
    data, _, _ = parse_yaml(request_yaml(request), "test")
    assert request_from_dict(data) == request


@given(
    requests(max_rank=3, live=True),
    st.fixed_dictionaries({w: st.integers(4, 5) for w in WORKERS}),
    st.integers(30, 80),
    st.integers(1, 20),
)
def test_plan_counts_what_a_naive_enumeration_counts(
    request: ProfileRequest, world: dict[str, int], total: int, first: int
) -> None:
    try:
        made = plan(request, world, steps_total=total, resume_from=first)
    except RequestError:
        return
    wanted = set()
    for worker, ranks in world.items():
        for rank in range(ranks):
            taken: set[tuple[str, int]] = set()
            for spec in request.captures if request else ():
                if not any(fnmatchcase(worker, p) for p in spec.workers) or (
                    spec.ranks is not None and rank not in spec.ranks
                ):
                    continue
                asked = [
                    n for n in range(first, total + 1) if n in spec.steps and (spec.backend, n) not in taken
                ]
                taken |= {(spec.backend, n) for n in asked}
                for n in asked:
                    if spec.each == "phase":
                        wanted.add((spec.backend, worker, rank, n, n + 1))
                    elif n - 1 not in asked:
                        stop = next(m for m in range(n, total + 2) if m not in asked)
                        wanted.add((spec.backend, worker, rank, n, stop))
    found = {(c.backend, c.worker, c.rank, c.window.start, c.window.stop) for c in made.captures}
    assert len({c.id for c in made.captures}) == len(made.captures)
    assert found == wanted
    assert len(wanted) == len(made.captures)
    if all(row.each == "step" for row in made.rows):
        assert made.reports == len(wanted)
    else:
        assert made.reports is None and not made.exact, "which phases run is not known here"


@given(requests(max_rank=3, live=True), st.fixed_dictionaries({w: st.integers(4, 5) for w in WORKERS}))
def test_each_process_takes_exactly_its_planned_captures(
    request: ProfileRequest, world: dict[str, int]
) -> None:
    try:
        made = plan(request, world, steps_total=50)
    except RequestError:
        return
    for worker, ranks in world.items():
        for rank in range(ranks):
            mine = {(c.backend, c.window) for c in made.captures if (c.worker, c.rank) == (worker, rank)}
            taken = {(s.backend, w) for s in request.for_worker(worker, rank) for w in s.windows(50)}
            assert taken == mine


@given(st.one_of(plain_data, near_requests()))
def test_any_data_is_a_request_or_a_request_error(data: Any) -> None:
    try:
        request = request_from_dict(data)
    except RequestError as error:
        assert error.problems
        return
    assert request_from_json(request.to_json()) == request
    plan(request)


@given(st.text(max_size=80))
def test_any_text_is_a_request_or_a_request_error(text: str) -> None:
    for read in (request_from_json, lambda t: parse_yaml(t, "test")):
        try:
            read(text)
        except RequestError:
            pass


@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%@`\n ,?~<0"), max_size=60))
def test_any_yaml_is_data_or_a_request_error(text: str) -> None:
    try:
        data, _, _ = parse_yaml(text, "test")
    except RequestError:
        return
    json.dumps(data, default=str, skipkeys=True)


VARIABLES = (
    "RLPROF_STEPS",
    "RLPROF_WORKERS",
    "RLPROF_RANKS",
    "RLPROF_BACKEND",
    "RLPROF_EACH",
    "RLPROF_OPTIONS",
    "RLPROF_FLAGS",
    "RLPROF_OUTPUT_DIR",
    "RLPROF_ENABLED",
    "RLPROF_REQUEST",
    "NRL_NSYS_WORKER_PATTERNS",
    "NRL_NSYS_PROFILE_STEP_RANGE",
    "NRL_NSYS_EXTRA_OPTIONS",
    "NRL_TORCH_PROFILE_WORKER_PATTERNS",
    "NRL_TORCH_PROFILE_STEP_RANGE",
    "NRL_TORCH_PROFILE_DIR",
)
values = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["3:5", "*policy*", "all", "0,1", '{"t": "cuda"}', "[1]", "null", "phase", "torch", "0:10"]
    ),
)


@given(
    st.dictionaries(st.sampled_from(VARIABLES), values),
    st.dictionaries(st.sampled_from(("steps", "workers", "ranks", "each", "x")), values),
)
def test_any_environment_and_flags_are_a_request_or_a_request_error(
    env: dict[str, str], flags: dict[str, str]
) -> None:
    try:
        request = load_request(env=env, overrides=flags)
    except RequestError as error:
        assert all(problem.origin for problem in error.problems), "every problem says where it is from"
        return
    assert request_from_json(request.to_json()) == request
