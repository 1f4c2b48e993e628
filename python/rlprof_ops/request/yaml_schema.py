"""The JSON Schema of a request's YAML, so that editors complete and check it while it is written."""

from __future__ import annotations

from typing import Any

from rlprof_ops import backends
from rlprof_ops.request import step_part
from rlprof_ops.request.model import EACH, ON_ERROR
from rlprof_ops.request.steps_from import EXAMPLE, WHEN_OF_A_LINE
from rlprof_ops.request.when import AT_MOST, MOST_CAPTURES

ITEM = r"([1-9][0-9]*|[1-9][0-9]*\s*:\s*([1-9][0-9]*)?(\s*:\s*[1-9][0-9]*)?)"
STEPS_TEXT = rf"^\s*({ITEM}(\s*,\s*{ITEM})*)?\s*$"
TIME_TEXT = r"^\s*([0-9]*\.)?[0-9]+\s*(ms|s|min|h)\s*$"
AT_TEXT = r"^\s*([^\W\d].*\+\s*)?([0-9]*\.)?[0-9]+\s*(ms|s|min|h)\s*$|^\s*[^\W\d][^+]*$"
SHARE_TEXT, TOKENS_TEXT = (rf"^\s*{text}\s*$" for text in (step_part.SHARE_TEXT, step_part.TOKENS_TEXT))
VALUE = {"type": ["string", "number", "boolean"]}


def schema() -> dict[str, Any]:
    """A draft 2020-12 schema. It is looser than the loader only where JSON Schema cannot say it (`5:5` is
    empty).
    """
    step = {"type": "integer", "minimum": 1}
    steps_text = {"type": "string", "pattern": STEPS_TEXT}
    capture = {
        "type": "object",
        "additionalProperties": False,
        "required": ["workers"],
        "anyOf": [{"required": ["steps"]}, {"required": ["when"]}],
        "properties": {
            "backend": {
                "enum": list(backends.names_allowed()),
                "default": backends.DEFAULT,
                "description": "The profiler.",
            },
            "workers": {
                "description": (
                    "Worker names or fnmatch patterns; a string with commas is the same as a list."
                ),
                "oneOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                ],
                "examples": [["*policy*"]],
            },
            "ranks": {
                "description": "all (default), a list of ranks, or null / [] for none.",
                "default": "all",
                "oneOf": [
                    {"enum": ["all", "none"]},
                    {"type": "null"},
                    {"type": "integer", "minimum": 0},
                    {"type": "array", "items": {"type": "integer", "minimum": 0}},
                ],
            },
            "steps": {
                "description": (
                    "Steps from 1; start:stop without stop, start:stop:stride, start: until the end; null is"
                    " off."
                ),
                "oneOf": [
                    step,
                    steps_text,
                    {"type": "null"},
                    {"type": "array", "items": {"oneOf": [step, steps_text]}},
                ],
                "examples": ["3:5, 10", [3, 4, 10], "3:20:5", "3:"],
            },
            "each": {
                "enum": list(EACH),
                "default": "step",
                "description": "One report per window, or per phase in each step.",
            },
            "options": {
                "description": "Options of the profiler without dashes: t is -t, backtrace is --backtrace=.",
                "type": ["object", "null"],
                "propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$"},
                "additionalProperties": VALUE,
            },
            "flags": {
                "description": "Options without a value, without dashes.",
                "oneOf": [
                    {"type": "string"},
                    {"type": "null"},
                    {"type": "array", "items": {"type": "string"}},
                ],
            },
            "env": {
                "description": "Extra environment of the profiled worker.",
                "type": ["object", "null"],
                "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
                "additionalProperties": VALUE,
            },
            "at": {
                "description": (
                    "When a window opens in each of its steps: a time from the step's begin, or a phase and a"
                    " time from its begin."
                ),
                "type": ["string", "null"],
                "pattern": AT_TEXT,
                "examples": ["30s", "generation", "generation+60s"],
            },
            "after": {
                "description": "A window opens once this share of the step's requests is done.",
                "type": ["string", "null"],
                "pattern": SHARE_TEXT,
                "examples": ["90%"],
            },
            "tokens": {
                "description": "A window from one token of the step's longest answer to another.",
                "type": ["string", "null"],
                "pattern": TOKENS_TEXT,
                "examples": ["2000:2200", "2000:"],
            },
            "for": {
                "description": "How long it is open, at most until the step ends.",
                "type": ["string", "null"],
                "pattern": TIME_TEXT,
                "examples": ["20s"],
            },
            "on_error": {
                "enum": list(ON_ERROR),
                "default": "continue",
                "description": (
                    "A worker that cannot be started under its profiler starts without it, or not at all."
                ),
            },
            "when": {
                "description": "Opens the capture for the next step when one of these is found in the job.",
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": {
                    "step_time": {"type": "string", "examples": ["> 1.3 x median", "> 20 s"]},
                    "phase": {"type": "string", "minLength": 1},
                    "rank": {"enum": ["slow"]},
                    "throttle": {"type": "boolean"},
                    "hang": {"type": ["string", "number"], "examples": ["300s"]},
                    "every": {"type": "integer", "minimum": 1, "maximum": MOST_CAPTURES},
                    "at_most": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": MOST_CAPTURES,
                        "default": AT_MOST,
                    },
                    "disk": {"type": ["string", "number"], "examples": ["2GiB"]},
                },
            },
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rlprof request",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "captures": {"type": ["array", "null"], "items": capture},
            "enabled": {"type": "boolean", "default": True},
            "output_dir": {
                "type": ["string", "object", "null"],
                "additionalProperties": {"type": "string"},
                "description": "Default: <run folder>/profiles. One folder, or one for each backend.",
            },
            "steps_from": {
                "description": "The driver's output tells the steps, where no process of the job does.",
                "type": ["object", "null"],
                "additionalProperties": False,
                "required": ["log"],
                "properties": {
                    "log": {
                        "description": "A regular expression in a line; its one group is the step's number.",
                        "type": "string",
                        "minLength": 1,
                        "examples": [EXAMPLE],
                    },
                    "when": {
                        "description": "What such a line says of its step.",
                        "enum": list(WHEN_OF_A_LINE),
                        "default": WHEN_OF_A_LINE[0],
                    },
                },
            },
        },
    }
