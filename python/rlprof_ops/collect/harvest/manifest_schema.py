"""The JSON Schema of manifest.json, from the annotations of its rows: the ones that it is read back by."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from rlprof_ops.collect.harvest.manifest import SCHEMA, STATES, CaptureResult, Count, Manifest, Report

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12): what `Manifest.to_dict` gives, every field required."""
    found = row_schema(Manifest, leave_out=("run_dir",))
    coverage = dict.fromkeys(("planned", *STATES, "unplanned"), _schema(Count))
    head = {
        "schema": {"const": SCHEMA},
        "complete": {"type": "boolean", "description": "every planned capture is ok or recovered"},
        "coverage": {
            "type": "object",
            "description": "number of captures: planned in all, then by state; unplanned counts reports"
            " outside the plan",
            "required": list(coverage),
            "additionalProperties": False,
            "properties": coverage,
        },
    }
    properties = head | found["properties"]
    # A manifest of an earlier version has none of these.
    required = [name for name in properties if name not in ("findings", "heard")]
    capture = row_schema(CaptureResult) | {"allOf": _OF_STATES}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rlprof-ops manifest",
        "description": "What `rlprof harvest` writes as manifest.json: every planned capture with its state,"
        " every report that was found. Paths are relative to the run folder. Steps are half-open: start"
        " included, stop not. Times are UTC nanoseconds. Names that are not UTF-8 stand as surrogate"
        " escapes.",
        **found | {"required": required, "properties": properties},
        "$defs": {"CaptureResult": capture, "Report": row_schema(Report)},
    }


_OF_STATES = [
    {
        "if": {"properties": {"state": {"const": "ok"}}},
        "else": {"properties": {"reason": {"minLength": 1}}},
    },
    {
        "if": {"properties": {"state": {"const": "missing"}}},
        "then": {"properties": {"report": {"type": "null"}}},
        "else": {"properties": {"report": {"type": "string"}}},
    },
]


def row_schema(kind: type, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """The schema of a dataclass, all of its fields required."""
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [each.name for each in dataclasses.fields(kind) if each.name not in leave_out]
    fields = {name: _schema(hints[name]) for name in names}
    return {"type": "object", "required": names, "additionalProperties": False, "properties": fields}


def _schema(hint: Any) -> dict[str, Any]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _schema(inner[0]) | {key: value for part in inner[1:] for key, value in part.items()}
    if origin in (typing.Union, types.UnionType):
        (found,) = (_schema(each) for each in inner if each is not type(None))
        return found | {"type": [found["type"], "null"]}
    if origin is tuple:
        return {"type": "array", "items": _schema(inner[0])}
    if origin is dict:
        return {"type": "object"} | ({} if inner[1] is Any else {"additionalProperties": _schema(inner[1])})
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": _TYPES[hint]}
