"""What tests of trainers share that hold our times and reports against the trainer's own log."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlprof_ops.collect.harvest.manifest import Manifest
from tests.trainers.local_job import LocalJob

WITHIN_S, LATE_S, PUT_ASIDE_S = 0.005, 0.02, 0.1
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


def heard(folder: Path, leader: str = "controller") -> dict[int, dict[str, Any]]:
    """The steps that the adapter told in the process which leads. One that the program's end cut is none of
    them."""
    rows = [
        json.loads(line) for file in folder.rglob(f"events/{leader}_rank0_*.jsonl") for line in file.open()
    ]
    return {row["step"]: row for row in rows if row["event"] == "step" and not row.get("cut")}


def agree(times: Mapping[tuple[int, str], tuple[float, float]]) -> None:
    """Ours and the trainer's, in seconds, by step and phase: the median of each phase within 5 ms. A process
    that is put aside between two clocks makes one of them late, but not most steps, nor by much."""
    apart = sorted((abs(mine - own), what) for what, (mine, own) in times.items())
    print(f"{len(apart)} times, at most {1000 * apart[-1][0]:.1f} ms apart")
    assert apart[9 * len(apart) // 10][0] <= LATE_S and apart[-1][0] <= PUT_ASIDE_S, apart[-5:]
    of_phase: dict[str, list[float]] = defaultdict(list)
    for seconds, (_, phase) in apart:
        of_phase[phase].append(seconds)
    medians = {phase: statistics.median(each) for phase, each in of_phase.items()}
    assert max(medians.values()) <= WITHIN_S, medians


def same(mine: float, own: float) -> bool:
    return abs(mine - own) <= max(0.02 * own, WITHIN_S)


def hold_reports(job: LocalJob, planned: Mapping[str, int]) -> None:
    """Each rank of these workers has its report."""
    reports = [each for each in Manifest.load(job.run).captures if each.worker in planned]
    assert Counter(each.worker for each in reports) == planned, job.output[-4000:]
    # On a busy machine nsys itself fails to start a program now and then.
    lost = [each for each in reports if each.state != "ok" and "before the program began" not in each.reason]
    assert lost == [], job.output[-4000:]
