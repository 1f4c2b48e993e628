"""`steps_from`: what a rule may be, and what is said of one that cannot work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof_ops.request import RequestError, load_request, plan, request_from_dict, request_from_json
from rlprof_ops.request.steps_from import StepsFrom

DIGITS = "has a group that is not a number: ({}) has to match digits alone, as in 'step (\\d+)'"


@pytest.mark.parametrize(
    "log",
    [
        r"step (\d+)",
        r"(?i)STEP[:= ]+([0-9]+)",
        r"(?:iteration|it) (\d+)",
        r"(\d+)/\d+ \[",
        r"(?P<step>\d+)/(\d+)",
        r"[(]x (\d{1,6})/",
        r"[]()]x([1-9]\d*)",
        r"\((\d+)\)",
    ],
)
def test_a_rule_is_kept_through_json(log: str) -> None:
    request = request_from_dict({"captures": [], "steps_from": {"log": log, "when": "begins"}})
    assert request.steps_from == StepsFrom(log, "begins")
    assert request_from_json(request.to_json()) == request and not request


@pytest.mark.parametrize(
    "rule, said",
    [
        (
            {"log": r"step (\d+"},
            "log 'step (\\d+' is no regular expression: missing ), unterminated subpattern",
        ),
        ({"log": r"step \d+"}, "log 'step \\d+' has no group: put what matches the step's number in paren"),
        ({"log": r"step (\w+)"}, DIGITS.format(r"\w+")),
        ({"log": r"step (.*) loss"}, DIGITS.format(".*")),
        ({"log": r"step (\d+|none)"}, DIGITS.format(r"\d+|none")),
        ({"log": r"(\w+) (\d+)"}, "has 2 groups: keep one, write the others as (?:…), or name the one that"),
        ({"log": "step\n(\\d+)"}, "log must be one line, a regular expression such as 'step (\\d+)'"),
        ({"log": 3}, "log must be one line"),
        ({}, "log must be one line"),
        ({"log": r"step (\d+)", "when": "end"}, "when 'end' is unknown; allowed are ends or begins. Did you"),
        ({"logs": r"step (\d+)"}, "unknown key 'logs'; allowed are log or when. Did you mean 'log'?"),
        ("step", "steps_from must be a mapping such as {log: 'step (\\d+)'}, not 'step'"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(rule: object, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        request_from_dict({"captures": [], "steps_from": rule})
    assert said in str(caught.value)


def test_variables_overrule_the_file_and_are_named(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("steps_from: {log: 'it (\\d+)', when: begins}\n")
    assert load_request(str(file)).steps_from == StepsFrom(r"it (\d+)", "begins")
    env = {"RLPROF_STEPS_LOG": r"step (\d+)"}
    assert load_request(str(file), env).steps_from == StepsFrom(r"step (\d+)", "begins")
    assert load_request(env=env | {"RLPROF_STEPS_LOG_WHEN": "ends"}).steps_from == StepsFrom(r"step (\d+)")
    with pytest.raises(RequestError, match="RLPROF_STEPS_LOG: log 'x' has no group"):
        load_request(env={"RLPROF_STEPS_LOG": "x"})


def test_the_plan_says_that_the_first_step_is_not_seen_to_begin() -> None:
    capture = {"workers": ["driver"], "steps": "1:3"}
    rule = {"log": r"step (\d+)"}
    warned = plan(request_from_dict({"captures": [capture], "steps_from": rule})).warnings
    assert [text for text in warned if "nothing tells when step 1 begins" in text], warned
    begins = {"captures": [capture], "steps_from": rule | {"when": "begins"}}
    assert "steps_from" not in str(plan(request_from_dict(begins)).warnings)


def test_plan_shows_the_rule_and_refuses_a_bad_one(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"

    def planned(rule: str, *flags: str) -> subprocess.CompletedProcess[str]:
        file.write_text(f"captures:\n- workers: [driver]\n  steps: '3:5'\nsteps_from: {{log: '{rule}'}}\n")
        argv = [sys.executable, "-m", "rlprof_ops", "plan", str(file), *flags]
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env)

    good = planned(r"step (\d+)")
    assert "known from a line of the driver's output with 'step (\\d+)', which ends its step" in good.stdout
    told = json.loads(planned(r"step (\d+)", "--json").stdout)
    assert told["request"]["steps_from"] == {"log": r"step (\d+)"}
    bad = planned(r"step \d+")
    assert bad.returncode == 2 and "r.yaml:4:19: log 'step \\d+' has no group" in bad.stderr, bad.stderr
