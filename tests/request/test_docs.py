"""docs/request.md says what is so: its file loads, its tables are true, its messages come word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlprof_ops.request import RequestError, Steps, load_request, plan
from rlprof_ops.request.environ import REQUEST_VARIABLES
from rlprof_ops.trainers.ranks_by_worker import parse_world

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "request.md").read_text()
CAPTURE = "captures:\n  - workers: {workers}\n    steps: {steps}\n    ranks: {ranks}\n"


def shown(start: str) -> str:
    """The one indented message that begins so."""
    found = [line[4:] for line in TEXT.splitlines() if line.startswith("    " + start)]
    assert len(found) == 1
    return found[0]


def test_the_file_of_the_document_loads(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[1])
    request = load_request(str(path))
    assert [(c.backend, str(c.steps), c.ranks) for c in request.captures] == [
        ("nsight", "3:5,10", (0, 1)),
        ("torch", "3:5", None),
    ]


MISTAKES = [
    ({"steps": '"0:10"'}, {}, "profile.yaml:3:12: steps '0:10'"),
    ({}, {"RLPROF_STEPS": "1-10", "RLPROF_WORKERS": "*"}, "RLPROF_STEPS: steps '1-10'"),
    ({"workers": "[polcy_worker]"}, {}, "profile.yaml:2:14: workers: worker 'polcy_worker'"),
    ({"ranks": '["0", "1"]'}, {}, "profile.yaml:4:13: ranks item '0'"),
    ({"steps": '"90:95"'}, {}, "profile.yaml:3:12: steps '90:95' will never run"),
]


@pytest.mark.parametrize(("fields", "env", "start"), MISTAKES)
def test_five_likely_mistakes(
    fields: dict[str, str], env: dict[str, str], start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("profile.yaml").write_text(
        CAPTURE.format(**{"workers": "[policy_worker]", "steps": "3", "ranks": "all"} | fields)
    )
    with pytest.raises(RequestError) as caught:
        request = load_request("profile.yaml", env)
        plan(request, parse_world("policy_worker=8,generation_worker=4"), steps_total=50)
    assert str(caught.value) == shown(start)


def test_every_fix_in_a_message_is_right() -> None:
    for fix, steps in (("1:11", range(1, 11)), ("46:51", range(46, 51))):
        assert [n for n in range(1, 99) if n in Steps.parse(fix)] == list(steps)


def test_the_tables_of_steps_and_variables_are_complete() -> None:
    for written, numbers in (("3:5", {3, 4}), ("3:5, 10", {3, 4, 10}), ("3:20:5", {3, 8, 13, 18})):
        assert f'`"{written}"`' in TEXT
        assert {n for n in range(1, 30) if n in Steps.parse(written)} == numbers
    assert not [name for name in REQUEST_VARIABLES if f"`{name}`" not in TEXT]


def test_the_trainers_page_names_every_worker() -> None:
    from rlprof_ops import trainers

    text = (DOCS / "frameworks.md").read_text()
    for name in trainers.frameworks():
        dialect = trainers.get(name)
        assert f"`{name}`" in text
        assert not [worker.name for worker in dialect.workers if f"`{worker.name}`" not in text]
