"""`at` and `for` of a capture: what is taken, what is refused and in which words, what the plan says."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from rlprof_ops import backends
from rlprof_ops.commands._plan_output import plan_json
from rlprof_ops.request import RequestError, plan, request_from_dict
from rlprof_ops.request.planning import size_rule
from rlprof_ops.request.step_part import StepPart
from rlprof_ops.request.yaml_schema import schema


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
        ({"at": "0s"}, StepPart()),
        ({"after": "90%", "for": "20s"}, StepPart(length_s=20.0, done=90.0)),
        ({"after": " 99.5 % "}, StepPart(done=99.5)),
        ({"tokens": "2000:2200"}, StepPart(tokens=(2000, 2200))),
        ({"tokens": "2000:", "for": "5s"}, StepPart(length_s=5.0, tokens=(2000, None))),
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
        ({"after": "30s"}, "after '30s' is no share of a step's requests; .* Did you mean 'at: 30s'"),
        ({"after": "0%"}, "write a number above 0 and up to 100 with %, such as 90%"),
        ({"after": "101%"}, "no share of a step's requests"),
        ({"after": 90}, "after 90 is no share of a step's requests"),
        ({"tokens": "2200:2000"}, "tokens '2200:2000' is no part of an answer; write its first token"),
        ({"tokens": "0:10"}, "no part of an answer"),
        ({"tokens": 2000}, "such as 2000:2200, from 1 and in that order"),
        ({"tokens": "20:30", "for": "5s"}, "tokens and for are two parts of a step; keep one of them"),
        ({"at": "1s", "after": "50%", "for": "5s"}, "at and after and for are two parts of a step"),
        ({"after": "50%", "when": {"rank": "slow"}}, "what `when` opens is the next whole step"),
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"after": "90%", "for": "20s"}, "90% of the requests for 20s"),
        ({"after": "90%"}, "90% of the requests for the rest of the step"),
        ({"tokens": "2000:2200"}, "token 2000 to token 2200"),
        ({"tokens": "2000:"}, "token 2000 for the rest of the step"),
    ],
)
def test_what_is_counted_in_words(given: dict[str, Any], said: str) -> None:
    request = request_from_dict(asked(**given))
    (row,) = plan(request, {"policy": 1}).rows
    assert str(row.part) == said and not plan(request, {"policy": 1}).warnings
    assert schema_takes(given)


def schema_takes(given: dict[str, Any]) -> bool:
    return Draft202012Validator(schema()).is_valid(asked(**given))


def test_the_schema_refuses_what_the_loader_does() -> None:
    assert not any(map(schema_takes, ({"after": "90"}, {"after": "30s"}, {"tokens": "2000"})))


def test_who_records_whole_steps_refuses_what_is_counted_too() -> None:
    of_amd = {"captures": [{"backend": "rocprof_sys", "workers": "policy", "steps": "5", "after": "90%"}]}
    (spec,) = request_from_dict(of_amd).captures
    (said,) = backends.validate(spec, backends.Where()).errors
    assert said.startswith(
        "rocprof_sys takes no window inside a step (after, tokens): it records whole steps"
    )


@pytest.mark.parametrize(
    ("given", "mib"),
    [
        ({"at": "generation+60s", "for": "20s"}, 3 * 50 / 3),
        ({"after": "90%", "for": "6s"}, 3 * 5),
        ({"at": "60s", "for": "10min"}, 3 * 50),
        ({"tokens": "2000:2200"}, 3 * 50),
    ],
)
def test_the_plan_says_how_large(given: dict[str, Any], mib: float) -> None:
    made = plan(request_from_dict(asked(steps="5:8", **given)), {"policy": 2})
    assert made.size_bytes == 2 * int(mib * 2**20)
    assert "`for`: of a step of 60 s" in size_rule()


def test_the_plan_as_json_has_the_words_of_the_request() -> None:
    request = request_from_dict(asked(after="90%", **{"for": "20s"}))
    [row] = plan_json(request, plan(request, {"policy": 1}))["rows"]
    assert (row["at"], row["after"], row["tokens"], row["for"]) == (None, "90%", None, "20s")
