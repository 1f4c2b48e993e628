"""report.json as programs and as we ourselves read it: the schema that is shipped, and damaged files."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import msgspec
import pytest
from tests.analyze.as_data import data_of, typed
from tests.analyze.simulated import simulated_answer

from rlprof_ops.analyze.answer_file import written
from rlprof_ops.analyze.report_model import Answer, json_schema
from rlprof_ops.analyze.reporting import load_answer
from rlprof_ops.errors import UsageError

SCHEMA = json.loads((files("rlprof_ops.analyze.output") / "report.schema.json").read_text())
# What a report.json of an earlier version lacks: it can be read all the same.
NEWER = {
    "critical_path", "what_if", "whole_run", "kernel_classes", "copies", "serving", "mfu", "counters",
    "kernel_spans", "pipeline",
}  # fmt: skip


def test_the_schema_that_is_shipped_is_that_of_the_rows() -> None:
    assert json_schema() == SCHEMA, "analyze/output/report.schema.json is old: python docs/generate.py"


def test_all_that_is_written_is_in_the_schema_and_required() -> None:
    answer = simulated_answer(4, 2)
    check = jsonschema.Draft202012Validator(SCHEMA)
    check.validate(answer)
    for name in answer:
        with pytest.raises(jsonschema.ValidationError, match=f"{name}. is a required"):
            check.validate({key: value for key, value in answer.items() if key != name})
    answer["steps"][0]["duration_ns"] = -1
    with pytest.raises(jsonschema.ValidationError):
        check.validate(answer)
    with pytest.raises(msgspec.ValidationError, match=r"duration_ns|steps\[0\]"):
        typed(answer)


def test_a_report_of_an_earlier_version_is_read() -> None:
    answer = simulated_answer(4, 2)
    older = {key: value for key, value in answer.items() if key not in NEWER}
    older["findings"] = [
        {key: value for key, value in row.items() if key not in ("saves_ns", "step", "link")}
        for row in answer["findings"]
    ]
    read = data_of(typed(older))
    assert read.keys() == answer.keys() == set(Answer.__struct_fields__)
    assert read["critical_path"] == {"steps": [], "slack": [], "untold": ""} and read["what_if"] == []
    assert read["findings"][0] == older["findings"][0] | {"saves_ns": None, "step": None, "link": ""}


def test_a_damaged_report_is_a_clear_error(tmp_path: Path) -> None:
    for text in (
        '{"made_by": "x", "schema": 1, "steps": 3}',
        '{"made_by": "x", "schema": 1, ',
        '["made_by"]',
    ):
        (tmp_path / "report.json").write_text(text)
        with pytest.raises(
            UsageError, match=r"report.json: cannot be read as report.json .*make it anew with"
        ):
            load_answer(tmp_path)


def test_what_is_not_utf_8_in_a_name_is_a_question_mark() -> None:
    assert written({"path": "n\udcff/é", "shares": [0.5, None]}) == '{"path":"n?/é","shares":[0.5,null]}'
