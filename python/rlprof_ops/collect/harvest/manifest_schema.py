"""The JSON Schema of manifest.json, from the annotations of its rows: the ones that it is read back by."""

from __future__ import annotations

from typing import Any

from rlprof_ops.collect.harvest.manifest import SCHEMA, STATES, CaptureResult, Count, Manifest, Report
from rlprof_ops.job.record_schema import DRAFT, row_schema, type_schema


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12): what `Manifest.to_dict` gives, every field required."""
    found = row_schema(Manifest, leave_out=("run_dir",))
    coverage = dict.fromkeys(("planned", *STATES, "unplanned"), type_schema(Count))
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
    required = [name for name in properties if name not in ("findings", "heard", "running")]
    capture = row_schema(CaptureResult) | {"allOf": _OF_STATES}
    return {
        "$schema": DRAFT,
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
