"""The answer as programs get it, in report.json: what tests look at by the names that stand there."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from rlprof_ops.analyze import reporting
from rlprof_ops.analyze.answer_file import written
from rlprof_ops.analyze.report_model import Answer


def data_of(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written(answer))
    return found


def answer_of(*args: Any, **options: Any) -> dict[str, Any]:
    return data_of(reporting.answer_of(*args, **options))


def report(*args: Any, **options: Any) -> dict[str, Any]:
    return data_of(reporting.report(*args, **options))


def typed(data: dict[str, Any]) -> Answer:
    """The rows that terminal and page read."""
    return msgspec.convert(data, Answer)
