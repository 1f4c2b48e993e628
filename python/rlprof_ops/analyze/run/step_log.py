"""The job's steps and phases as its driver told them: event lines in the run folder, beside the reports.

They are what the steps of a report go by whose process knows none, and the driver's own row where no profiler
ran in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlprof_ops.analyze.columns import GpuSpans, Launches, MemorySamples, Origin, Part, Spans, Trace, join
from rlprof_ops.backends import report_names
from rlprof_ops.host import foreign
from rlprof_ops.runtime.process.event_log import ENGINE_WORKER

BACKEND = "steps"
_MARK = b'"event": "step"'
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class LoggedStep:
    """One step by the driver's clock, in Unix nanoseconds, with its phases: (name, begin, end)."""

    step: int
    begin_ns: int
    end_ns: int
    phases: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class StepLog:
    """What one process told. `path` is relative to the run folder."""

    path: str
    worker: str
    rank: int
    host: str
    pid: int
    steps: tuple[LoggedStep, ...]


class Member(NamedTuple):
    """An inner worker of an engine, as it says of itself: `rollout_tp1`."""

    pid: int
    worker: str


def read_members(root: Path) -> dict[str, list[Member]]:
    """By host, what processes inside a server's session are."""
    found: dict[str, list[Member]] = {}
    for path in sorted(root.glob("nodes/*/events/notes_*.jsonl")):
        for row in () if path.is_symlink() else foreign.read_rows(path):
            pid, worker = foreign.whole(row.get("pid")), foreign.text(row.get("worker"))
            if row.get("event") == ENGINE_WORKER and pid is not None and worker:
                found.setdefault(foreign.text(row.get("host")), []).append(Member(pid, worker))
    return found


def read_step_logs(root: Path) -> tuple[StepLog, ...]:
    """Every process of a run folder that told steps."""
    return tuple(_logs(root))


def _logs(root: Path) -> Iterator[StepLog]:
    for path in sorted(root.glob("nodes/*/events/*.jsonl")):
        named = report_names.parse(path.name.removesuffix(".jsonl") + ".nsys-rep")
        if path.is_symlink() or named is None or named.worker is None or named.pid is None:
            continue
        steps = _steps(path)
        if steps:
            relative = str(path.relative_to(root))
            yield StepLog(relative, named.worker, named.rank or 0, named.host or "", named.pid, steps)


def _steps(path: Path) -> tuple[LoggedStep, ...]:
    found: dict[int, LoggedStep] = {}
    try:
        with foreign.open_plain(path) as file:
            data = file.read(_MOST_BYTES)
    except OSError:
        return ()
    for line in data.split(b"\n"):
        step = _step(line) if _MARK in line else None
        if step is not None:
            found[step.step] = step
    return tuple(found[number] for number in sorted(found))


def _step(line: bytes) -> LoggedStep | None:
    try:
        row = foreign.parse(line)
        phases = tuple(
            (str(phase[0]), int(phase[1]), int(phase[2]))
            for phase in row["phases"]
            if phase[2] > phase[1] > 0
        )
        found = LoggedStep(int(row["step"]), int(row["begin_ns"]), int(row["end_ns"]), phases)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):
        return None
    return found if 0 < found.begin_ns < found.end_ns < 1 << 62 else None


def steps_of(path: Path, start: int | None, stop: int | None) -> tuple[LoggedStep, ...]:
    """The steps of one log inside a half-open window; None for no bound."""
    return tuple(
        step for step in _steps(path) if (start or 0) <= step.step and (stop is None or step.step < stop)
    )


def trace_of(steps: Iterable[LoggedStep], host: str, pid: int, rank: int) -> Trace:
    """The driver's steps and phases as the ranges of a trace without a GPU."""
    rows: list[tuple[str, int, int]] = []
    for step in steps:
        rows += [(f"step {step.step}", step.begin_ns, step.end_ns), *step.phases]
    labels = {name: code for code, name in enumerate(dict.fromkeys(row[0] for row in rows))}
    rows.sort(key=lambda row: (row[1], -row[2]))
    columns: Part = {
        "start": np.array([row[1] for row in rows], np.int64),
        "duration": np.array([row[2] - row[1] for row in rows], np.int64),
        "name": np.array([labels[row[0]] for row in rows], np.int32),
        "track": np.zeros(len(rows), np.int32),
    }
    origin = Origin(
        BACKEND,
        host,
        pid,
        rank,
        on_utc=True,
        window_start=min((row[1] for row in rows), default=0),
        window_end=max((row[2] for row in rows), default=0),
    )
    return Trace(
        origin,
        tuple(labels),
        ((str(pid), "driver"),),
        join(Spans, [columns]),
        join(Spans, []),
        join(Launches, []),
        join(GpuSpans, []),
        join(MemorySamples, []),
        events=len(rows),
    )
