"""`at` and `for` of a capture: what is taken, what is refused and in which words, what the plan says."""

from __future__ import annotations

from typing import Any

import pytest

from rlprof_ops.request import RequestError, plan, request_from_dict
from rlprof_ops.request.step_part import StepPart


def asked(**more: Any) -> dict[str, Any]:
    return {"captures": [{"workers": "policy", "steps": "5", **more}]}


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"at": "30s", "for": "20s"}, StepPart(30.0, None, 20.0)),
        ({"at": " generation + 1.5min ", "for": "500ms"}, StepPart(90.0, "generation", 0.5)),
        ({"at": "generation"}, StepPart(0.0, "generation")),
        ({"at": "my+phase+2s"}, StepPart(2.0, "my+phase")),
        ({"for": "1h"}, StepPart(0.0, None, 3600.0)),
        ({"at": None, "for": None}, None),
    ],
)
def test_what_is_asked_of_a_step(given: dict[str, Any], part: StepPart | None) -> None:
    request = request_from_dict(asked(**given))
    assert request.captures[0].part == part
    assert request_from_dict(request.to_dict()) == request


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"at": 30}, "at 30 is no point in a step; .* Did you mean '30s'"),
        ({"at": "generation+60"}, "Did you mean 'generation\\+60s'"),
        ({"at": "2 minutes"}, "Did you mean '2min'"),
        ({"at": "-3s"}, "at '-3s' is no point in a step; write a time from its begin, such as 30s"),
        ({"for": "0s"}, "for '0s' is no length of a window; write a number with ms, s, min or h, above 0"),
        ({"for": "20"}, "Did you mean '20s'"),
        ({"at": "8d"}, "no point in a step"),
        ({"at": "1s", "each": "phase"}, "each: phase has its own windows in a step"),
        ({"at": "1s", "steps": "5:"}, "steps '5:' have no end"),
        ({"at": "1s", "steps": "1:20000"}, "at, for makes 19999 windows"),
        ({"at": "1s", "when": {"rank": "slow"}}, "what `when` opens is the next whole step"),
        ({"duration": "20s"}, "unknown key 'duration'; .* Did you mean 'for'"),
    ],
)
def test_what_is_no_part_of_a_step(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        request_from_dict(asked(**given))


def test_each_step_has_a_window_and_the_plan_says_when() -> None:
    made = plan(request_from_dict(asked(steps="5:8", at="generation+60s")), {"policy": 2})
    assert made.reports == 6 and not made.warnings
    assert str(made.rows[0].part) == "generation+60s for the rest of the step"


def test_the_plan_warns_of_a_phase_that_nobody_is_known_to_have() -> None:
    request = request_from_dict(asked(at="generaton+60s"))
    (said,) = plan(request, {"policy": 1}).warnings
    assert "at: 'generaton' is none of the known phases" in said
    assert said.endswith("Did you mean 'generation'?")
    assert not plan(request, {"policy": 1}, phases={"policy": ("generaton",)}).warnings
