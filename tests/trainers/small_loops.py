"""What the tests of loops share that run around small workers: AReaL's and ROLL's."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlprof_ops.collect.harvest.manifest import Manifest
from tests.trainers.local_job import LocalJob

CLASSES = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
"""
"""A module that gives a class for every name."""


def logged(output: str) -> dict[int, dict[str, Any]]:
    """What the trainer logged of each step, a line of JSON each, counted from 1."""
    rows = map(json.loads, re.findall(r'\{"step": .*\}', output))
    return {row["step"] + 1: row for row in rows}


def heard(folder: Path) -> dict[int, dict[str, Any]]:
    """The steps that the adapter told."""
    rows = [json.loads(line) for file in folder.rglob("controller_rank0_*.jsonl") for line in file.open()]
    return {row["step"]: row for row in rows if row["event"] == "step"}


def same(mine: float, own: float) -> bool:
    return abs(mine - own) <= max(0.02 * own, 0.005)


def hold_reports(job: LocalJob, planned: Mapping[str, int]) -> None:
    """Each rank of these workers has its report."""
    reports = [each for each in Manifest.load(job.run).captures if each.worker in planned]
    assert Counter(each.worker for each in reports) == planned, job.output[-4000:]
    # On a busy machine nsys itself fails to start a program now and then.
    lost = [each for each in reports if each.state != "ok" and "before the program began" not in each.reason]
    assert lost == [], job.output[-4000:]
