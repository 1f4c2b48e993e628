"""The request's core: steps, selectors, loading, planning."""

from __future__ import annotations

import tracemalloc

import pytest

from rlprof_ops.request import (
    Capture,
    RequestError,
    Steps,
    Window,
    load_request,
    plan,
    request_from_dict,
    request_from_json,
)
from rlprof_ops.request.steps import MAX_WINDOWS


@pytest.mark.parametrize(
    ("text", "canonical", "runs"),
    [
        ("3:5", "3:5", 1),
        ("3:5, 10", "3:5,10", 2),
        ([3, 4, 10], "3:5,10", 2),
        ("3:20:5", "3,8,13,18", 4),
        ("3:", "3:", 1),
        ("1,4:6", "1,4:6", 2),
        ([1, 2, 5], "1:3,5", 2),
        (None, "", 0),
        ([], "", 0),
        ("null", "", 0),
        (7, "7", 1),
        ("5:7,3:5,4", "3:7", 1),
        ("10,3:", "3:", 1),
    ],
)
def test_steps_become_sorted_disjoint_windows(text: object, canonical: str, runs: int) -> None:
    steps = Steps.parse(text)
    assert (str(steps), len(steps.windows())) == (canonical, runs)
    assert Steps.parse(str(steps)) == steps


def test_request_round_trips_through_json() -> None:
    request = load_request(env={"RLPROF_STEPS": "3:5,7", "RLPROF_WORKERS": "*policy*", "RLPROF_RANKS": "0,1"})
    assert request_from_json(request.to_json()) == request
    assert [c.ranks for c in request.for_worker("policy_worker", 0)] == [(0, 1)]
    assert request.for_worker("policy_worker", 2) == ()
    assert request.for_worker("vllm_generation_worker", 0) == ()
    assert not load_request(env={})


def test_file_problems_carry_line_and_column(tmp_path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text("captures:\n  - backend: nsigt\n    workers: ['*']\n    steps: 0:10\n    rankz: [0]\n")
    with pytest.raises(RequestError) as caught:
        load_request(str(path))
    assert [str(p) for p in caught.value.problems] == [
        (
            f"{path}:5:5: unknown key 'rankz'; allowed are backend, workers, ranks, steps, each, at,"
            " after, tokens, for, options, flags, env, on_error or when. Did you mean 'ranks'?"
        ),
        (
            f"{path}:2:14: backend 'nsigt' is unknown; allowed are memory, nsight, rocprof_sys or torch. Did"
            " you mean 'nsight'?"
        ),
        (
            f"{path}:4:12: steps '0:10': steps are counted from 1 and stop is not included; write '1:11' for"
            " the first 10 steps"
        ),
    ]


def test_plan_lists_each_capture() -> None:
    request = request_from_dict({"captures": [{"workers": "*policy*", "steps": "3:5,7", "ranks": [0]}]})
    made = plan(request, {"policy_worker": 2, "vllm_generation_worker": 1})
    assert made.captures == (
        Capture("nsight", "policy_worker", 0, Window(3, 5)),
        Capture("nsight", "policy_worker", 0, Window(7, 8)),
    )
    assert made.captures[0].id == "nsight/policy_worker/rank0/step3-4"
    assert made.reports == 2 and made.exact


@pytest.mark.parametrize("steps", ["1:1000000", "1:10000000", "1:5001,6001:11002"])
def test_phases_of_too_many_steps_are_refused_at_once_and_in_little_memory(steps: str) -> None:
    asked = [{"workers": ["policy_worker"], "steps": steps, "each": "phase"}]
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match=r"each: phase makes \d+ windows .* 10000"):
            request_from_dict({"captures": asked})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_phases_until_the_end_of_a_long_run_are_refused_by_its_plan_and_bounded_without_one() -> None:
    request = request_from_dict({"captures": [{"workers": ["w"], "steps": "1:", "each": "phase"}]})
    assert plan(request, {"w": 1}, steps_total=10_000).rows
    with pytest.raises(RequestError, match="each: phase makes 10001 windows"):
        plan(request, {"w": 1}, steps_total=10_001)
    (spec,) = request.captures
    found = spec.windows(1 << 47)  # a step as an event of a damaged node tells it
    assert len(found) == MAX_WINDOWS + 1
    assert found[0] == Window(1, 2) and found[-1] == Window(MAX_WINDOWS + 1, (1 << 47) + 1)


def test_a_worker_without_ranks_is_named_in_its_plan() -> None:
    asked = request_from_dict({"captures": [{"workers": ["a", "b"], "steps": "3"}]})
    made = plan(asked, {"a": 0, "b": 2})
    assert made.reports == 2
    assert any("'a' has no ranks in this run" in text for text in made.warnings)
