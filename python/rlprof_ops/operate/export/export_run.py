"""Exports a run once, or for as long as its job goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rlprof_ops.errors import RlprofError
from rlprof_ops.job import own_files
from rlprof_ops.job.run_folder import job_of
from rlprof_ops.operate.export import openmetrics
from rlprof_ops.operate.export.led_steps import NewSteps, RecordedStep
from rlprof_ops.operate.recorded import RecordedSummary, ended, read_summary
from rlprof_ops.words import limit

_SILENT_S = 600.0


class Sink(Protocol):
    """What takes steps, and is closed by its owner."""

    def add(self, steps: Sequence[RecordedStep]) -> None: ...

    def close(self) -> None: ...


def export(
    run: Path,
    sinks: Sequence[Sink],
    textfile: Path | None = None,
    every_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """The number of steps exported. `every_s`: again and again until the job has ended.

    Raises RlprofError where there is no summary for the textfile, and when a job that is followed tells
    nothing for ten minutes: one whose head was killed never writes that it has ended.
    """
    steps, exported = NewSteps(run), 0
    heard, heard_at = 0, clock()
    while True:
        over = ended(run)  # asked first, so that what came last is not missed
        found = steps.new(last=every_s is None or over) if sinks else []
        for sink in sinks:
            sink.add(found)
        exported += len(found)
        summary = _summary(run, must=textfile is not None and (every_s is None or over))
        if textfile is not None and summary is not None:
            own_files.write(textfile, openmetrics.text(summary.data))
        if every_s is None or over:
            return exported
        if summary is not None and summary.data["t_ns"] != heard:
            heard, heard_at = summary.data["t_ns"], clock()
        elif clock() - heard_at > _SILENT_S:
            raise RlprofError(
                f"{run}: the recorder has told nothing for {limit(_SILENT_S)}: the job was killed, or it"
                f" runs with RLPROF_RECORD=0 (`rlprof status {job_of(run) or run.name}`)"
            )
        sleep(every_s)


def _summary(run: Path, must: bool) -> RecordedSummary | None:
    """None where there is none yet; `must`: then raise RlprofError, which says why."""
    try:
        return read_summary(run)
    except RlprofError:
        if must:
            raise
        return None
