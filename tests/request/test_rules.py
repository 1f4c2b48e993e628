"""Every rule for steps, workers, ranks and variables, with where it comes from; where ours is stricter it
says so.

NeMo RL's documents: docs/nsys-profiling.md and the torch profiler page. Its tests:
tests/unit/.../test_nsys.py and test_worker_groups.py. `own` is this project's design.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.request import (
    CaptureSpec,
    RequestError,
    Steps,
    first_match,
    load_request,
    plan,
    request_from_dict,
)
from rlprof_ops.request.environ import REQUEST_VARIABLES

DOC = "NeMo RL docs/nsys-profiling.md"
TORCH_DOC = "NeMo RL torch profiler document"
TEST_NSYS = "NeMo RL test_nsys.py"
TEST_GROUPS = "NeMo RL test_worker_groups.py"


@dataclass(frozen=True)
class Rule:
    """`given` makes `expected`; a str in `expected` that starts with `!` is a part of the error instead."""

    origin: str
    given: Any
    expected: Any
    stricter: str = ""

    def __str__(self) -> str:
        return f"{self.origin}: {self.given}"


def ids(rules: list[Rule]) -> list[str]:
    return [f"{i}-{rule.origin}" for i, rule in enumerate(rules)]


STEPS = [
    Rule("own, request table", "3:5, 10", "3:5,10"),
    Rule("own, request table", [3, 4, 10], "3:5,10"),
    Rule("own, request table", "3:20:5", "3,8,13,18"),
    Rule("own, request table", "3:", "3:"),
    Rule("own, request table", "1,4:6", "1,4:6"),
    Rule("verl docs/perf/nsight_profiling.rst: [1, 2, 5] are steps 1, 2 and 5", [1, 2, 5], "1:3,5"),
    Rule("verl docs/perf/nsight_profiling.rst: null is off", None, ""),
    Rule("verl reference 2.1: [] is off", [], ""),
    Rule("own: a window is a maximal run of adjacent steps", "5:7,3:5", "3:7"),
    Rule("own: overlaps merge", "3:6,4:8", "3:8"),
    Rule("own: text in a list", ["3:5", 10], "3:5,10"),
    Rule("own: an int", 3, "3"),
    Rule("own: a list as text, as in a variable", "[3, 4]", "3:5"),
    Rule(f"{TEST_NSYS}: whitespace is tolerated", " 3 : 5 ", "3:5"),
    Rule(f"{TEST_NSYS}: 5:6 is one step", "5:6", "5"),
    Rule(f"{TEST_NSYS}: step 1,000,000", "1000000:1000001", "1000000"),
    Rule(f"{DOC}: 0:10 is an error", "0:10", "!write '1:11' for the first 10 steps"),
    Rule(f"{TEST_NSYS}: 10:5 is empty", "10:5", "!stop must be above start; did you mean '5:10'?"),
    Rule(f"{TEST_NSYS}: 5:5 is empty", "5:5", "!write '5:6' for step 5 alone"),
    Rule(f"{TEST_NSYS}: abc:10", "abc:10", "!'abc' is not a whole number"),
    Rule(f"{TEST_NSYS}: 1:xyz", "1:xyz", "!'xyz' is not a whole number"),
    Rule(f"{TEST_NSYS}: -5:10 is below 1", "-5:10", "!steps are counted from 1, so -5 is not a step"),
    Rule(f"{TEST_NSYS}: 1-10 has no colon", "1-10", "!write '1:11' for steps 1 to 10"),
    Rule(f"{TEST_NSYS}: step 0 is no step", 0, "!steps are counted from 1", "upstream ignores it"),
    Rule(f"{TEST_NSYS}: negative steps", -3, "!steps are counted from 1", "upstream ignores it"),
    Rule("own", "1–10", "!write '1:11'"),
    Rule("own", "1..10", "!write '1:11'"),
    Rule("own", ":5", "!has no start; steps are counted from 1: write '1:5'"),
    Rule("own", "3::2", "!a stride needs an end"),
    Rule("own", "3:9:0", "!the stride must be at least 1"),
    Rule("own", "3:9:2:1", "!too many ':'"),
    Rule("own", True, "!are not steps"),
    Rule("own", 3.0, "!are not steps"),
    Rule("own", {"start": 3}, "!are not steps"),
    Rule("own", [3, None], "!is not a step"),
    Rule("own: a stride of windows is bounded", "1:900000:2", "!at most 10000 are allowed"),
    Rule("own: Arabic-Indic digits are no numbers here", "٣:٥", "!is not a whole number"),
]


@pytest.mark.parametrize("rule", STEPS, ids=ids(STEPS))
def test_steps(rule: Rule) -> None:
    if str(rule.expected).startswith("!"):
        with pytest.raises(RequestError) as caught:
            Steps.parse(rule.given)
        assert rule.expected[1:] in str(caught.value)
    else:
        assert str(Steps.parse(rule.given)) == rule.expected


PATTERNS = [
    Rule(f"{DOC}: fnmatch wildcards", ("dtensor_policy_worker", "*policy*"), "*policy*"),
    Rule(f"{DOC}: ? matches one character", ("worker1", "worker?"), "worker?"),
    Rule(f"{DOC}: [seq]", ("worker1", "worker[12]"), "worker[12]"),
    Rule(f"{DOC}: [!seq]", ("worker1", "worker[!12]"), None),
    Rule(
        f"{DOC}: exact names",
        ("vllm_generation_worker", "dtensor_policy_worker,vllm_generation_worker"),
        "vllm_generation_worker",
    ),
    Rule(f"{DOC}: whitespace is stripped", ("policy", "  *vllm* ,  *policy* "), "*policy*"),
    Rule(f"{DOC}: empty patterns are ignored", ("policy", ",,policy,"), "policy"),
    Rule(f"{TEST_GROUPS}: no match", ("policy", "*vllm*"), None),
    Rule(f"{TEST_GROUPS}: the first of several wins", ("policy_worker", "*policy*,*worker*"), "*policy*"),
    Rule(
        "NeMo RL worker names: v2 is another name",
        ("dtensor_policy_worker_v2", "dtensor_policy_worker"),
        None,
    ),
    Rule("own: matching is case-sensitive everywhere", ("Policy", "policy"), None),
]


@pytest.mark.parametrize("rule", PATTERNS, ids=ids(PATTERNS))
def test_patterns(rule: Rule) -> None:
    worker, patterns = rule.given
    request = request_from_dict({"captures": [{"workers": patterns, "steps": 3}]})
    assert first_match(worker, request.captures[0].workers) == rule.expected
    assert bool(request.for_worker(worker, 0)) == (rule.expected is not None)


def capture(**fields: Any) -> dict[str, Any]:
    return {"captures": [{"workers": "*", "steps": "3:5"} | fields]}


REQUESTS = [
    Rule("own: ranks absent are all", capture(), {"ranks": None}),
    Rule("own: the word all", capture(ranks="all"), {"ranks": None}),
    Rule("own: null is none", capture(ranks=None), {"ranks": ()}),
    Rule("own: [] is none", capture(ranks=[]), {"ranks": ()}),
    Rule("verl docs: [0,1] are ranks 0 and 1", capture(ranks=[0, 1]), {"ranks": (0, 1)}),
    Rule("own: one number", capture(ranks=2), {"ranks": (2,)}),
    Rule("own: duplicates are one", capture(ranks=[1, 1, 0]), {"ranks": (0, 1)}, "verl does not look"),
    Rule(
        "verl reference 2.4: ['0'] matches nothing, silently",
        capture(ranks=["0", "1"]),
        "!ranks are numbers: write [0, 1]",
        "an error",
    ),
    Rule("own", capture(ranks="0,1"), "!ranks '0,1' is text; ranks are numbers: write [0, 1]"),
    Rule(
        "verl reference 2.4: negative ranks are not checked",
        capture(ranks=[-1]),
        "!ranks are whole numbers from 0",
        "an error",
    ),
    Rule("own", capture(ranks=[True]), "!is not a rank"),
    Rule("own: steps null is off", capture(steps=None), {"steps": Steps()}),
    Rule("own: workers are needed", {"captures": [{"steps": 3}]}, "!workers is missing"),
    Rule("own: workers are needed", capture(workers=" , "), "!workers names no worker"),
    Rule("own: steps are needed", {"captures": [{"workers": "*"}]}, "!steps is missing"),
    Rule("own: backend default", capture(), {"backend": "nsight"}),
    Rule("own: nearest word", capture(backend="nsys"), "!Did you mean 'nsight'?"),
    Rule("own: nearest word", capture(backend="troch"), "!Did you mean 'torch'?"),
    Rule("own: nearest word", capture(each="phases"), "!Did you mean 'phase'?"),
    Rule("own: unknown key", capture(rank=[0]), "!unknown key 'rank'"),
    Rule("own: unknown key", capture(worker_groups="x"), "!Did you mean 'workers'?"),
    Rule("own: a capture's key at the top", {"steps": "3:5"}, "!belongs inside an entry of 'captures'"),
    Rule(
        "own: options to text",
        capture(options={"t": "cuda", "n": 3, "b": True}),
        {"options": {"t": "cuda", "n": "3", "b": "true"}},
    ),
    Rule(
        "own: options without dashes", capture(options={"--trace": "cuda"}), "!write 'trace', without dashes"
    ),
    Rule(
        "own: what a shell means something by is text",
        capture(options={"t": "cuda; rm -rf /"}),
        {"options": {"t": "cuda; rm -rf /"}},
    ),
    Rule(
        "own: what a shell means something by is text",
        capture(options={"p": "a b|c$(d) `e` 'f' \"g\" \\ é"}),
        {"options": {"p": "a b|c$(d) `e` 'f' \"g\" \\ é"}},
    ),
    Rule(
        "own: what a shell means something by is text",
        capture(options={"o": "a{b,c}"}),
        {"options": {"o": "a{b,c}"}},
    ),
    Rule(
        "own: no command line takes NUL",
        capture(options={"t": "a\0b"}),
        "!option 't' must be one line of text, not",
    ),
    Rule(
        "own: a setting is one line",
        capture(options={"t": "a\nb"}),
        "!option 't' must be one line of text, not",
    ),
    Rule(
        "own: nsys' own placeholders pass",
        capture(options={"env-var": "A=%q{RANK}"}),
        {"options": {"env-var": "A=%q{RANK}"}},
    ),
    Rule("own", capture(options=["t"]), "!options must be a mapping"),
    Rule("own: flags", capture(flags=["python-backtrace"]), {"flags": ("python-backtrace",)}),
    Rule(
        "own: flags without dashes",
        capture(flags="--python-backtrace"),
        "!write 'python-backtrace', without dashes",
    ),
    Rule(
        "RLinf: a name in flags and options",
        capture(options={"x": "1"}, flags=["x"]),
        "!both in options and in flags",
    ),
    Rule("own: environment", capture(env={"A": 1}), {"env": {"A": "1"}}),
    Rule("own: environment", capture(env={"A B": 1}), "!is not a variable's name"),
    Rule("own: environment", capture(env={"A": "x\ny"}), "!must be one line of text"),
    Rule(
        "own: one mode a process",
        {"captures": [capture()["captures"][0], capture(each="phase")["captures"][0]]},
        "!mixes with each: step",
    ),
    Rule("own: on_error", capture(on_error="stop"), "!allowed are continue or fail"),
]


@pytest.mark.parametrize("rule", REQUESTS, ids=ids(REQUESTS))
def test_requests(rule: Rule) -> None:
    if isinstance(rule.expected, str):
        with pytest.raises(RequestError) as caught:
            request_from_dict(rule.given)
        assert rule.expected[1:] in str(caught.value)
    else:
        spec = request_from_dict(rule.given).captures[0]
        assert {name: getattr(spec, name) for name in rule.expected} == rule.expected


NSYS = {"NRL_NSYS_WORKER_PATTERNS": "*policy*,*vllm*", "NRL_NSYS_PROFILE_STEP_RANGE": "3:5"}
TORCH = {"NRL_TORCH_PROFILE_WORKER_PATTERNS": "*vllm*", "NRL_TORCH_PROFILE_STEP_RANGE": "3:5"}
TWINS = {"RLPROF_STEPS": "3:5,7", "RLPROF_WORKERS": "*policy*"}


def spec(**fields: Any) -> CaptureSpec:
    return CaptureSpec(**({"workers": ("*policy*", "*vllm*"), "steps": Steps.parse("3:5")} | fields))


ENVIRONMENTS = [
    Rule("own: nothing set, nothing asked", {}, ()),
    Rule(
        f"{TEST_GROUPS}: nothing set, nothing asked",
        {"NRL_NSYS_WORKER_PATTERNS": "", "NRL_NSYS_PROFILE_STEP_RANGE": ""},
        (),
    ),
    Rule(DOC, NSYS, (spec(),)),
    Rule(
        f"{TEST_NSYS}: whitespace",
        {"NRL_NSYS_WORKER_PATTERNS": " *policy* , *vllm* ", "NRL_NSYS_PROFILE_STEP_RANGE": " 3:5 "},
        (spec(),),
    ),
    Rule(
        f"{TEST_NSYS}: both or neither",
        {"NRL_NSYS_WORKER_PATTERNS": "*"},
        "!NRL_NSYS_WORKER_PATTERNS: is set, but NRL_NSYS_PROFILE_STEP_RANGE is not",
    ),
    Rule(
        f"{TEST_NSYS}: both or neither",
        {"NRL_NSYS_PROFILE_STEP_RANGE": "3:5"},
        "!NRL_NSYS_PROFILE_STEP_RANGE: is set, but NRL_NSYS_WORKER_PATTERNS is not",
    ),
    Rule(
        f"{TEST_NSYS}: no colon",
        NSYS | {"NRL_NSYS_PROFILE_STEP_RANGE": "1-10"},
        "!NRL_NSYS_PROFILE_STEP_RANGE: steps '1-10'",
    ),
    Rule(
        f"{TEST_NSYS}: no colon",
        NSYS | {"NRL_NSYS_PROFILE_STEP_RANGE": "7"},
        "!NeMo RL's form is one range start:stop",
    ),
    Rule(
        f"{TEST_NSYS}: not a number",
        NSYS | {"NRL_NSYS_PROFILE_STEP_RANGE": "abc:10"},
        "!'abc' is not a whole number",
    ),
    Rule(f"{TEST_NSYS}: empty", NSYS | {"NRL_NSYS_PROFILE_STEP_RANGE": "5:5"}, "!is empty"),
    Rule(f"{TEST_NSYS}: below 1", NSYS | {"NRL_NSYS_PROFILE_STEP_RANGE": "0:10"}, "!write '1:11'"),
    Rule(
        f"{DOC}: one range only",
        NSYS | {"NRL_NSYS_PROFILE_STEP_RANGE": "3:5,7"},
        "!NeMo RL's form is one range start:stop",
    ),
    Rule(
        f"{DOC}: no stride",
        NSYS | {"NRL_NSYS_PROFILE_STEP_RANGE": "3:9:2"},
        "!NeMo RL's form is one range start:stop",
    ),
    Rule(
        f"{DOC}: no open range",
        NSYS | {"NRL_NSYS_PROFILE_STEP_RANGE": "3:"},
        "!NeMo RL's form is one range start:stop",
    ),
    Rule(
        f"{TEST_GROUPS}: extra options add",
        NSYS | {"NRL_NSYS_EXTRA_OPTIONS": '{"gpu-metrics-device": "all"}'},
        (spec(options={"gpu-metrics-device": "all"}),),
    ),
    Rule(
        f"{TEST_GROUPS}: extra options override a default",
        NSYS | {"NRL_NSYS_EXTRA_OPTIONS": '{"cuda-graph-trace": "graph"}'},
        (spec(options={"cuda-graph-trace": "graph"}),),
    ),
    Rule(
        f"{TEST_GROUPS}: capture-range may be overridden",
        NSYS | {"NRL_NSYS_EXTRA_OPTIONS": '{"capture-range": "nvtx"}'},
        (spec(options={"capture-range": "nvtx"}),),
    ),
    Rule(f"{TEST_GROUPS}: empty extra options", NSYS | {"NRL_NSYS_EXTRA_OPTIONS": ""}, (spec(),)),
    Rule(
        f"{TEST_GROUPS}: not JSON",
        NSYS | {"NRL_NSYS_EXTRA_OPTIONS": "{t: x"},
        "!NRL_NSYS_EXTRA_OPTIONS: '{t: x' is not JSON",
    ),
    Rule(f"{TEST_GROUPS}: a JSON list", NSYS | {"NRL_NSYS_EXTRA_OPTIONS": "[1]"}, "!must be a JSON object"),
    Rule(TORCH_DOC, TORCH, (spec(backend="torch", workers=("*vllm*", "controller")),)),
    Rule(
        f"{TORCH_DOC}: 0:10 is an error",
        TORCH | {"NRL_TORCH_PROFILE_STEP_RANGE": "0:10"},
        "!NRL_TORCH_PROFILE_STEP_RANGE",
    ),
    Rule(
        f"{TORCH_DOC}: both or neither",
        {"NRL_TORCH_PROFILE_STEP_RANGE": "3:5"},
        "!NRL_TORCH_PROFILE_WORKER_PATTERNS is not",
    ),
    Rule(
        "own: both of NeMo RL's",
        NSYS | TORCH,
        (spec(), spec(backend="torch", workers=("*vllm*", "controller"))),
    ),
    Rule("own: twins", TWINS, (spec(workers=("*policy*",), steps=Steps.parse("3:5,7")),)),
    Rule(
        "own: twins win over NeMo RL's",
        TWINS | NSYS,
        (spec(workers=("*policy*",), steps=Steps.parse("3:5,7")),),
    ),
    Rule(
        "own: all twins",
        TWINS
        | {
            "RLPROF_RANKS": "0,1",
            "RLPROF_BACKEND": "torch",
            "RLPROF_EACH": "phase",
            "RLPROF_OPTIONS": '{"with_stack": true}',
            "RLPROF_FLAGS": "a,b",
        },
        (
            spec(
                workers=("*policy*",),
                steps=Steps.parse("3:5,7"),
                ranks=(0, 1),
                backend="torch",
                each="phase",
                options={"with_stack": "true"},
                flags=("a", "b"),
            ),
        ),
    ),
    Rule(
        "own: ranks all",
        TWINS | {"RLPROF_RANKS": "all"},
        (spec(workers=("*policy*",), steps=Steps.parse("3:5,7")),),
    ),
    Rule(
        "own: ranks as a list",
        TWINS | {"RLPROF_RANKS": "[0, 2]"},
        (spec(workers=("*policy*",), steps=Steps.parse("3:5,7"), ranks=(0, 2)),),
    ),
    Rule("own: both or neither", {"RLPROF_STEPS": "3:5"}, "!RLPROF_STEPS: is set, but RLPROF_WORKERS is not"),
    Rule("own: both or neither", {"RLPROF_WORKERS": "*"}, "!RLPROF_WORKERS: is set, but RLPROF_STEPS is not"),
    Rule(
        "own: a twin alone",
        {"RLPROF_BACKEND": "torch"},
        "!RLPROF_BACKEND: is set, but RLPROF_WORKERS and RLPROF_STEPS are not",
    ),
    Rule(
        "own: misspelt",
        TWINS | {"RLPROF_OPTION": "{}"},
        "!RLPROF_OPTION: is not a variable of rlprof. Did you mean 'RLPROF_OPTIONS'?",
    ),
    Rule(
        "own: misspelt alone",
        {"RLPROF_STEPZ": "3:5"},
        "!RLPROF_STEPZ: is not a variable of rlprof. Did you mean 'RLPROF_STEPS'?",
    ),
    Rule(
        "own: NeMo RL's too",
        {"NRL_NSYS_WORKER_PATTERN": "*policy*"},
        "!NRL_NSYS_WORKER_PATTERN: is not a variable of NeMo RL. Did you mean 'NRL_NSYS_WORKER_PATTERNS'?",
    ),
    Rule("own: NeMo RL's others are left alone", {"NRL_PROFILE_STARTED": "1", "NRL_MAX_STEPS": "9"}, ()),
    Rule("own: ranks in a variable's words", TWINS | {"RLPROF_RANKS": "0-3"}, "!are numbers: write 0,1,2,3"),
    Rule("own: the plugin's own variables are no slips", {"RLPROF_WORKER": "x", "RLPROF_RANK": "0"}, ()),
    Rule(
        "own: options not JSON", TWINS | {"RLPROF_OPTIONS": "t=cuda"}, "!RLPROF_OPTIONS: 't=cuda' is not JSON"
    ),
    Rule(
        "own: an option twice",
        TWINS | {"RLPROF_OPTIONS": '{"t": "nvtx", "t": "cuda"}'},
        "!(key 't' stands twice)",
    ),
]


@pytest.mark.parametrize("rule", ENVIRONMENTS, ids=ids(ENVIRONMENTS))
def test_environment(rule: Rule) -> None:
    if isinstance(rule.expected, str):
        with pytest.raises(RequestError) as caught:
            load_request(env=rule.given)
        assert rule.expected[1:] in str(caught.value)
    else:
        assert load_request(env=rule.given).captures == rule.expected


REQUEST_FILE = (
    "captures:\n- {workers: ref_worker, steps: 9}\n- {backend: torch, workers: x, steps: 1}\noutput_dir:"
    " /from/file\n"
)
PRECEDENCE = [
    Rule("own: the file alone", ({}, {}), [("ref_worker", "9", None), ("x", "1", None)]),
    Rule("own: NeMo RL's replace the file's captures", (NSYS, {}), [("*policy*,*vllm*", "3:5", None)]),
    Rule("own: twins replace both", (NSYS | TWINS, {}), [("*policy*", "3:5,7", None)]),
    Rule("own: two flags make the one capture", (TWINS, {"workers": "w", "steps": "4"}), [("w", "4", None)]),
    Rule(
        "own: one flag changes every capture",
        ({}, {"steps": "4"}),
        [("ref_worker", "4", None), ("x", "4", None)],
    ),
    Rule("own: one flag changes every capture", (TWINS, {"ranks": "0"}), [("*policy*", "3:5,7", (0,))]),
]


@pytest.mark.parametrize("rule", PRECEDENCE, ids=ids(PRECEDENCE))
def test_precedence(rule: Rule, tmp_path: Any) -> None:
    path = tmp_path / "request.yaml"
    path.write_text(REQUEST_FILE)
    env, flags = rule.given
    for request in (
        load_request(str(path), env, flags),
        load_request(None, env | {"RLPROF_REQUEST": str(path)}, flags),
    ):
        assert [(",".join(c.workers), str(c.steps), c.ranks) for c in request.captures] == rule.expected
        assert request.output_dir == "/from/file"
    assert load_request(str(path), env | {"RLPROF_OUTPUT_DIR": "/from/env"}, flags).output_dir == "/from/env"
    assert (
        load_request(str(path), env | {"RLPROF_OUTPUT_DIR": "/e"}, flags | {"output_dir": "/flag"}).output_dir
        == "/flag"
    )
    assert not load_request(str(path), env | {"RLPROF_ENABLED": "0"}, flags)


PLANS = [
    Rule(
        "own: window past the end",
        ("12", {"w": 1}, 10, None),
        "!steps '12' will never run: the run ends after step 10; write e.g. '10'",
    ),
    Rule(
        "own: partly past the end",
        ("9:12", {"w": 1}, 10, None),
        "steps '11' will never run: the run ends after step 10",
    ),
    Rule(
        "own: passed on resume",
        ("3:5", {"w": 1}, None, 100),
        "!the run resumes at step 100; write e.g. '100:102'",
    ),
    Rule(
        "own: partly passed on resume",
        ("3:7", {"w": 1}, None, 5),
        "steps '3:5' will never run: the run resumes at step 5",
    ),
    Rule("own: many reports", ("3", {"w": 512}, None, None), "512 reports are a lot"),
    Rule("NeMo RL docs: about 10 steps at most", ("3:20", {"w": 1}, None, None), "17 steps in one report"),
    Rule("own: no end", ("3:", {"w": 1}, None, None), "the window stays open until the run ends"),
    Rule("own: unknown world", ("3", None, None, None), "the world is unknown"),
    Rule(
        "own: unknown worker",
        ("3", {"v": 1}, None, None),
        "!worker 'w' matches no worker of this run; it has v.",
    ),
]


@pytest.mark.parametrize("rule", PLANS, ids=ids(PLANS))
def test_plan_warns(rule: Rule) -> None:
    steps, world, total, resume = rule.given
    request = request_from_dict({"captures": [{"workers": "w", "steps": steps}]})
    if rule.expected.startswith("!"):
        with pytest.raises(RequestError) as caught:
            plan(request, world, total, resume)
        assert rule.expected[1:] in str(caught.value)
    else:
        assert any(rule.expected in warning for warning in plan(request, world, total, resume).warnings)


def test_phases_are_counted_when_they_are_known() -> None:
    request = request_from_dict({"captures": [{"workers": "w", "steps": "3:5", "each": "phase"}]})
    symbolic = plan(request, {"w": 4})
    assert (symbolic.reports, symbolic.rows[0].formula, symbolic.captures[0].id) == (
        None,
        "4 x 2 x phases",
        "nsight/w/rank0/step3-3/*",
    )
    known = plan(request, {"w": 4}, phases={"w": ("logprob", "train")})
    assert (known.reports, known.exact, known.captures[1].id) == (16, True, "nsight/w/rank0/step3-3/train")


@pytest.mark.parametrize(
    ("nsight", "ranks", "refused", "of"),
    [
        ({}, [0], [True], " ranks 0"),
        ({}, "all", [True], " ranks 0"),
        ({"t": "nvtx"}, [0], [], ""),
        ({}, [1], [], ""),
    ],
    ids=["one CUPTI", "on some ranks", "nsys leaves it", "another rank"],
)
def test_a_plan_says_which_profiler_a_gpu_will_refuse(
    nsight: dict[str, str], ranks: Any, refused: list[bool], of: str
) -> None:
    """Two profilers in a worker fail (NeMo RL's document on its torch profiler), whatever their steps: nsys
    holds CUPTI from the start of the process.
    """
    captures = [
        {"workers": "w", "steps": 3, "ranks": [0], "options": nsight},
        {"workers": "w", "steps": 9, "ranks": ranks, "backend": "torch"},
    ]
    for order, number in ((captures, 2), (captures[::-1], 1)):
        warnings = plan(request_from_dict({"captures": order}), {"w": 2}).warnings
        said = [text for text in warnings if "CUPTI serves one profiler only" in text]
        begin = f"capture {number} (torch) of 'w'{of} is refused on a GPU: "
        assert [text.startswith(begin) for text in said] == refused


def test_a_rank_that_does_not_exist_is_named() -> None:
    request = request_from_dict({"captures": [{"workers": "w", "steps": 3, "ranks": [0, 9]}]})
    with pytest.raises(RequestError, match="'w' has ranks 0 to 3, so 9 cannot be profiled"):
        plan(request, {"w": 4})


def test_all_problems_come_at_once_with_their_places(tmp_path: Any) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "captures:\n- workers: []\n  steps: 5:5\n  ranks: ['0']\n- bakend: torch\nenabled: perhaps\n"
    )
    with pytest.raises(RequestError) as caught:
        load_request(str(path), {"RLPROF_OPTION": "1"})
    places = [problem.origin.replace(str(path), "p") for problem in caught.value.problems]
    assert sorted(places) == sorted(
        ["RLPROF_OPTION", "p:2:12", "p:3:10", "p:4:11", "p:5:3", "p:5:3", "p:5:3", "p:6:10"]
    )
    assert str(caught.value).startswith("8 problems in the request:\n")


def test_unquoted_base_60_numbers_are_steps() -> None:
    """YAML 1.1 reads 3:5 as 185."""
    from rlprof_ops.request.yaml_file import parse_yaml

    data, _, _ = parse_yaml("captures: [{workers: a, steps: 3:5}]\n", "test")
    assert str(request_from_dict(data).captures[0].steps) == "3:5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "f:2:1: key 'a' stands twice in this mapping"),
        ("a: &x [*x]\n", "f:1:4: a value inside itself, or aliases without end"),
        ("a: [\n", "f:2:1: not YAML"),
        ("? [a]\n: 1\n", "f:1:3: a key must be a word"),
    ],
)
def test_yaml_problems_have_places(text: str, message: str) -> None:
    from rlprof_ops.request.yaml_file import parse_yaml

    with pytest.raises(RequestError) as caught:
        parse_yaml(text, "f")
    assert str(caught.value).startswith(message)


def test_anchors_and_merges_work() -> None:
    from rlprof_ops.request.yaml_file import parse_yaml

    data, values, _ = parse_yaml("base: &b {steps: 3, ranks: [0]}\nmore: {<<: *b, steps: 4}\n", "f")
    assert data["more"] == {"steps": 4, "ranks": [0]}
    assert values[("more", "steps")] == "f:2:23"


def test_a_carried_request_stands_where_a_file_would(tmp_path: Any) -> None:
    """`rlprof submit` hands the checked request to the job; a file that is named, and the twins, are above
    it.
    """
    carried = request_from_dict({"captures": [{"workers": "carried", "steps": 3}], "output_dir": "/c"})
    env = {"RLPROF_REQUEST_JSON": carried.to_json()}
    assert load_request(env=env) == carried
    twins = load_request(env=env | TWINS)
    assert (twins.captures[0].workers, twins.output_dir) == (("*policy*",), "/c")
    path = tmp_path / "request.yaml"
    path.write_text(REQUEST_FILE)
    assert load_request(env=env | {"RLPROF_REQUEST": str(path)}) == load_request(str(path))
    with pytest.raises(RequestError, match="RLPROF_REQUEST_JSON: not JSON"):
        load_request(env={"RLPROF_REQUEST_JSON": "{"})


def test_any_kind_of_integer_is_a_step() -> None:
    numpy = pytest.importorskip("numpy")
    assert numpy.int64(3) in Steps.parse("3:5") and numpy.int32(5) not in Steps.parse("3:5")


def test_a_request_error_crosses_processes() -> None:
    import pickle

    error = RequestError(["one", "two"])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_no_variable_of_ours_counts_as_misspelt() -> None:
    """All that any room reads or sets, from the sources and the knobs."""
    import re
    from pathlib import Path

    root = Path(__file__).parents[2]
    files = [
        *root.glob("python/**/*.py"),
        *root.glob("scripts/**/*.sh"),
        root / "env" / "defaults.env",
        root / "ray.sub",
        *root.glob("docs/*.md"),
    ]
    names = {name for file in files for name in re.findall(r"\bRLPROF_[A-Z_]+[A-Z]\b", file.read_text())}
    assert len(names) > 40
    for name in sorted(
        names - set(REQUEST_VARIABLES) - {"RLPROF_STEP", "RLPROF_OPTION", "RLPROF_REQUEST_JSON"}
    ):  # slips in the docs; its own test is below
        assert not load_request(env={name: "1"}).captures


def test_a_range_of_nemo_rl_that_is_overruled_is_named_with_its_value() -> None:
    asked = load_request(env={**NSYS, "RLPROF_STEPS": "4", "RLPROF_WORKERS": "*"})

    [note] = asked.notes
    assert [str(spec.steps) for spec in asked.captures] == ["4"]
    assert "NRL_NSYS_PROFILE_STEP_RANGE=3:5 is dropped" in note


def test_a_variable_of_the_file_is_the_text_that_stands_there(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    written = {"UMASK": "0022", "VERSION": "3.10", "SMALL": "0.00001", "SIGN": "+5", "COUNT": "8"}
    pairs = ", ".join(f"{name}: {text}" for name, text in written.items())
    file.write_text(f"captures:\n- workers: w\n  steps: 017\n  ranks: [1]\n  env: {{{pairs}}}\n")
    (capture,) = load_request(str(file)).captures
    assert capture.env == written and str(capture.steps) == "17" and capture.ranks == (1,)
