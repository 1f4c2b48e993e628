"""Exports a run once, or for as long as its job goes on."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rlprof_ops.errors import RlprofError
from rlprof_ops.host import atomic
from rlprof_ops.operate.export import openmetrics
from rlprof_ops.operate.export.steps import RecordedStep, Steps
from rlprof_ops.operate.recorded import read_summary

_MOST_BYTES = 8 << 20


class Sink(Protocol):
    """What takes steps."""

    def add(self, steps: Sequence[RecordedStep]) -> None: ...

    def close(self) -> None: ...


def export(
    run: Path,
    sinks: Sequence[Sink],
    textfile: Path | None = None,
    every_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """The number of steps exported. `every_s`: again and again until the job has ended."""
    steps, exported = Steps(run), 0
    try:
        while True:
            ended = _ended(run)  # asked first, so that what came last is not missed
            found = steps.new() if sinks else []
            for sink in sinks:
                sink.add(found)
            exported += len(found)
            if textfile is not None:
                with contextlib.suppress(RlprofError):
                    atomic.write(textfile, openmetrics.text(read_summary(run).data), mode=0o644)
            if every_s is None or ended:
                return exported
            sleep(every_s)
    finally:
        for sink in sinks:
            sink.close()


def _ended(run: Path) -> bool:
    """Whether the job has written down how it ended."""
    try:
        with open(run / "run.json", "rb") as file:
            record = json.loads(file.read(_MOST_BYTES))
        return str((record.get("end") or {}).get("cause") or "running") != "running"
    except (OSError, ValueError, AttributeError):
        return False
