"""`when` of a capture: what it takes, what it says to a mistake, what it opens within its budget."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlprof_ops.backends.memory import memory_options
from rlprof_ops.commands._plan_output import plan_json
from rlprof_ops.recorder.detect.anomaly import HANG, SLOW_RANK, THROTTLE, Anomaly
from rlprof_ops.recorder.detect.trigger import StepFact, Trigger
from rlprof_ops.request import RequestError, plan, request_from_dict, request_from_json
from rlprof_ops.runtime.on_demand.apply import spec_for
from rlprof_ops.runtime.on_demand.watcher import CaptureRequest


def spec(when: object, **more: object) -> Any:
    request = request_from_dict(
        {"captures": [{"backend": "torch", "workers": "policy_worker", "when": when} | more]}
    )
    assert request and request_from_json(request.to_json()) == request
    return request.captures[0]


def test_it_stands_in_place_of_steps_or_beside_them() -> None:
    alone = spec({"rank": "slow"})
    assert alone.waits and not alone.is_on and alone.windows() == ()
    both = spec({"rank": "slow"}, steps="3:5")
    assert both.waits and both.is_on
    request = request_from_dict({"captures": [{"workers": "policy_worker", "when": {"rank": "slow"}}]})
    assert request.for_worker("policy_worker", 0), "its worker is wrapped from the start"
    assert not request.for_worker("other", 0)


def test_every_key_is_read() -> None:
    text = {
        "step_time": "> 1.3 x median", "phase": "generation", "rank": "slow", "throttle": True,
        "hang": "300s", "every": 200, "at_most": 7, "disk": "2GiB",
    }  # fmt: skip
    when = spec(text).when
    assert (when.step_time.factor, when.phase, when.rank, when.throttle) == (1.3, "generation", "slow", True)
    assert (when.hang_s, when.every, when.at_most, when.disk_bytes) == (300, 200, 7, 2 << 30)
    assert spec({"step_time": "> 1.5 min"}).when.step_time.seconds == 90


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"step_time": "1.3"}, "step_time '1.3' is no limit; write '> 1.3 x median' or '> 20 s'"),
        ({"step_time": "> 0.9 x median"}, "the factor must be above 1"),
        ({"rank": 3}, "the only word is slow"),
        ({"throttle": "yes"}, "throttle must be true or false, not 'yes'"),
        ({"hang": "0s"}, "is no time from 1s to 24h; write for instance 300s"),
        ({"every": 0}, "every 0 must be a whole number from 1 to 10000"),
        ({"rank": "slow", "disk": "2 apples"}, "disk '2 apples' is no size"),
        ({"steptime": "> 20 s"}, "Did you mean 'step_time'?"),
        ({"at_most": 3}, "when says nothing to wait for"),
        ("slow", "when must be a mapping such as {rank: slow}, not 'slow'"),
    ],
)
def test_a_mistake_is_named(when: object, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        spec(when)
    assert message in str(raised.value)


def slow(rank: int, step: int) -> Anomaly:
    return Anomaly(SLOW_RANK, "it is slow", f"x{step}", 1, step, "policy_worker", (rank,))


def trigger(when: dict[str, object]) -> Trigger:
    asked = spec(when)
    return Trigger(1, asked, asked.when)


def test_a_slow_rank_opens_its_next_step_with_two_peers() -> None:
    opened = trigger({"rank": "slow"}).on_finding(slow(5, 15), range(8), int)
    assert opened is not None
    assert (opened.id, opened.ranks, opened.next_steps) == ("when-slow_rank-step15-1", (0, 1, 5), 1)
    assert trigger({"throttle": True}).on_finding(slow(5, 15), range(8), int) is None


def test_a_throttled_gpu_opens_the_ranks_of_its_node() -> None:
    found = Anomaly(THROTTLE, "hot", "x", 1, 9, node="n2")
    opened = trigger({"throttle": True}).on_finding(found, range(8), int, here=(4, 5))
    assert opened is not None and opened.ranks == (0, 1, 4, 5)


def test_a_hang_is_captured_by_seconds_since_no_step_comes() -> None:
    opened = trigger({"hang": "30s"}).on_finding(Anomaly(HANG, "still", "x", 1, 9), range(8), int)
    assert opened is not None and (opened.seconds, opened.next_steps) == (5.0, None)


def test_it_is_taken_with_the_flags_of_its_request() -> None:
    asked = spec({"every": 10}, backend="memory", flags=["host"])
    opened = Trigger(1, asked, asked.when).on_step(StepFact(10, 1.0, 1.0, {}), range(2), int)
    assert opened is not None
    taken = spec_for(CaptureRequest.from_json(opened.to_json()), "policy_worker", 0, 11)
    assert taken is not None and memory_options.parse(taken.options, taken.flags).host


def test_what_it_opens_is_a_whole_step() -> None:
    with pytest.raises(RequestError, match="each: phase is of steps; what `when` opens is the next whole"):
        spec({"rank": "slow"}, each="phase")
    older = {"captures": [{"workers": ["w"], "steps": "3", "each": "phase", "when": {"rank": "slow"}}]}
    assert request_from_json(json.dumps(older)), "a run of an earlier release is still read"


def test_the_plan_has_a_row_for_it() -> None:
    both = {"workers": "policy_worker", "ranks": [0], "steps": "3", "when": {"throttle": True}}
    alone = {"backend": "torch", "workers": "*", "when": {"rank": "slow", "at_most": 3}}
    request = request_from_dict({"captures": [alone, both]})
    made = plan(request, {"policy_worker": 8, "ref": 1})
    assert (made.reports, made.exact, made.warnings) == (1, True, ())
    assert [(row.index, row.worker, row.ranks, row.formula, str(row.when or "")) for row in made.rows] == [
        (0, "policy_worker", 8, "up to 3 x 8", "rank: slow, at_most: 3"),
        (0, "ref", 1, "up to 3 x 1", "rank: slow, at_most: 3"),
        (1, "policy_worker", 1, "1 x 1", ""),
        (1, "policy_worker", 1, "up to 5 x 1", "throttle: true, at_most: 5"),
    ]
    assert next(row["when"] for row in plan_json(request, made)["rows"]) == {"rank": "slow", "at_most": 3}
    assert [row.formula for row in plan(request).rows] == ["up to 3 x ranks", "1 x 1", "up to 5 x 1"]
    with pytest.raises(RequestError, match="worker 'policy_worker' matches no worker") as raised:
        plan(request, {"ref": 1})
    assert len(raised.value.problems) == 1


def test_budgets_are_kept() -> None:
    few = trigger({"rank": "slow", "at_most": 2})
    assert [few.on_finding(slow(1, step), range(4), int) is not None for step in (9, 9, 12, 15)] == [
        True, False, True, False,
    ]  # fmt: skip
    small = trigger({"rank": "slow", "disk": "1MiB"})
    assert small.on_finding(slow(1, 9), range(4), lambda: 1 << 20) is None
    assert small.on_finding(slow(1, 9), range(4), lambda: 1000) is not None


def test_step_times_and_turns() -> None:
    limit = trigger({"step_time": "> 1.3 x median", "phase": "generation"})
    ordinary = StepFact(20, 99.0, 10.0, {"generation": (6.0, 5.0)})
    assert limit.on_step(ordinary, range(4), int) is None
    opened = limit.on_step(StepFact(21, 10.0, 10.0, {"generation": (7.0, 5.0)}), range(4), int)
    assert opened is not None and opened.id == "when-slow_generation-step21-1" and opened.ranks is None
    turns = trigger({"every": 10, "at_most": 9})
    taken = [turns.on_step(StepFact(step, 1.0, 1.0, {}), range(3), int) for step in range(1, 51)]
    assert [each.ranks for each in taken if each] == [(0,), (1,), (2,), (0,), (1,)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("when", {"step_time": "> 0.01 ms"}),
        ("when", {"step_time": "> 2000000 s"}),
        ("when", {"step_time": "> 1.0000001 x median"}),
        ("when", {"step_time": "> 1.2345678 x median"}),
        ("when", {"every": 3, "disk": "1.5MiB"}),
        ("for", "0.05ms"),
        ("at", "generation+123456.789012s"),
        ("after", "33.33333333%"),
        ("after", "0.00001%"),
    ],
)
def test_what_a_request_takes_its_job_takes_as_it_was_written(field: str, value: object) -> None:
    data = {"workers": "w", "steps": None if field == "when" else "3", field: value}
    asked = request_from_dict({"captures": [data]})
    assert request_from_json(asked.to_json()) == asked


@pytest.mark.parametrize(
    "when",
    [
        {"every": 1, "disk": "9" * 400 + "GiB"},
        {"step_time": f"> {'9' * 400} s"},
        {"step_time": "> 0.00000000001 s"},
    ],
)
def test_a_quantity_beyond_all_bounds_is_refused(when: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=r"is no (size|limit)"):
        spec(when)
