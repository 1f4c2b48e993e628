"""The typed report and its JSON schema, which were written apart, say the same."""

from __future__ import annotations

import json
from importlib.resources import files
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from rlprof_ops.analyze.report_model import Answer
from rlprof_ops.analyze.reporting import load_answer
from rlprof_ops.errors import UsageError

SCHEMA = json.loads((files("rlprof_ops.analyze.output") / "report.schema.json").read_text())
# What a report.json of an earlier version lacks: it can be read all the same.
NEWER = {
    "report": {
        "critical_path",
        "what_if",
        "whole_run",
        "kernel_classes",
        "copies",
        "serving",
        "mfu",
        "counters",
        "kernel_spans",
        "pipeline",
    },
    "report.whole_run": {"rollout"},
    "report.critical_path": {"untold"},
    "report.findings[]": {"saves_ns", "step", "link"},
}
PLAIN = {"string": str, "integer": int, "number": float, "boolean": bool, "null": NoneType}


def differences(model: Any, schema: dict[str, Any], place: str) -> list[str]:
    """Where a type and the schema of the same value say different things."""
    if "anyOf" in schema:
        return unions(model, schema["anyOf"], place)
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return [] if all(type(value) is model for value in values) else [f"{place}: {model} and {values}"]
    kind = schema.get("type")
    if isinstance(kind, list):
        return unions(model, [{"type": one} for one in kind], place)
    if is_typeddict(model):
        return members(model, schema, place)
    if get_origin(model) is list and kind == "array":
        (item,) = get_args(model)
        return differences(item, schema["items"], f"{place}[]")
    if get_origin(model) is dict and kind == "object" and "properties" not in schema:
        more = schema.get("additionalProperties")
        return differences(get_args(model)[1], more, f"{place}.*") if isinstance(more, dict) else []
    return [] if PLAIN.get(str(kind)) is model else [f"{place}: {model} and {kind}"]


def members(model: Any, schema: dict[str, Any], place: str) -> list[str]:
    hints, properties = get_type_hints(model), schema.get("properties", {})
    found = [f"{place}.{name} is in one of them" for name in hints.keys() ^ properties.keys()]
    if model.__required_keys__ != set(schema.get("required", ())) - NEWER.get(place, set()):
        found.append(f"{place}: other members are required")
    return found + [
        line
        for name in hints.keys() & properties.keys()
        for line in differences(hints[name], properties[name], f"{place}.{name}")
    ]


def unions(model: Any, schemas: list[dict[str, Any]], place: str) -> list[str]:
    parts = list(get_args(model)) if isinstance(model, UnionType) or get_args(model) else [model]
    left = [schema for schema in schemas if not any(not differences(p, schema, place) for p in parts)]
    return [] if not left and len(parts) == len(schemas) else [f"{place}: {model} and {schemas}"]


def test_the_typed_report_and_the_schema_are_one() -> None:
    assert differences(Answer, SCHEMA, "report") == []


def test_differences_are_found() -> None:
    schema = {"type": "object", "properties": {"capture": {"type": "integer"}}, "required": ["capture"]}
    hints = get_type_hints(get_args(get_type_hints(get_type_hints(Answer)["coverage"])["missing"])[0])
    assert set(hints) == {"capture", "state", "reason"}
    assert differences(int | None, {"type": "integer"}, "x") != []
    assert differences(str, {"anyOf": [{"type": "string"}, {"type": "null"}]}, "x") != []
    assert differences(list[int], {"type": "array", "items": {"type": "string"}}, "x") != []
    assert differences(get_type_hints(Answer)["clocks"], schema, "x") != []


def test_a_damaged_report_is_a_clear_error(tmp_path) -> None:
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
