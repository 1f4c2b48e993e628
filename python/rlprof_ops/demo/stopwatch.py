"""The demo's own clock: when each phase of each step began and ended, to hold against what the profilers
report.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


class PhaseTimer:
    """Opens a profiler's steps and phases and writes down their times in UTC nanoseconds.

    A step's phases come as separate remote calls, so the step is opened and closed by two calls; a trainer
    whose step is one function writes `with prof.step(step):` instead.
    """

    def __init__(self, profiler: Any) -> None:
        self.profiler = profiler
        self.times: list[dict[str, Any]] = []
        self._open_step = ExitStack()
        self._step: int | None = None
        self._begun_ns = 0

    def begin_step(self, step: int) -> None:
        self._open_step.enter_context(self.profiler.step(step))
        self._step, self._begun_ns = step, time.time_ns()

    def end_step(self) -> None:
        self._write("step", self._begun_ns, time.time_ns())
        self._step = None
        self._open_step.close()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with self.profiler.range(name):
            begun_ns = time.time_ns()
            try:
                yield
            finally:
                self._write(name, begun_ns, time.time_ns())

    def close(self) -> None:
        """Close the profiler: its last reports are complete when this returns."""
        self._open_step.close()
        self.profiler.close()

    def _write(self, phase: str, start_ns: int, end_ns: int) -> None:
        self.times.append({"step": self._step, "phase": phase, "start_ns": start_ns, "end_ns": end_ns})
