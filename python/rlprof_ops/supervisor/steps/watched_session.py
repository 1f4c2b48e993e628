"""One nsys session that its supervisor watches: whose it is, its events, and its captures."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rlprof_ops.backends import Where, validate
from rlprof_ops.backends.nsight import options as nsys_options
from rlprof_ops.backends.nsight.recorder import NsysSessionRecorder
from rlprof_ops.backends.window_support import TRAINER, driver_of
from rlprof_ops.request import CaptureSpec, Steps, Window
from rlprof_ops.runtime.process.event_log import EventLog, StepFile
from rlprof_ops.runtime.process.session_file import Session
from rlprof_ops.supervisor.steps.left_open import Left, events_path
from rlprof_ops.window.captures import Captures, ProcessCapture
from rlprof_ops.window.gate import OpenWindow, TimedGate
from rlprof_ops.window.output_dir import OutputDir

Result = TypeVar("Result")


class WatchedSession:
    """One session: its identity, its event file, and its windows. `say` tells a person of failures.

    What opens and closes runs on the session's own thread, in the order of `run`.
    """

    def __init__(
        self,
        session: Session,
        node_dir: Path,
        specs: tuple[CaptureSpec, ...],
        output_dir: OutputDir,
        say: Callable[[str], None],
    ) -> None:
        self.session = session
        self._node_dir = node_dir
        events = events_path(node_dir, session)
        self.events = EventLog(events)
        self._steps = StepFile(events.with_suffix(".step"))
        self.reached: int | None = None
        self.captures = Captures(
            session,
            node_dir,
            node_dir / "tmp",
            self.events,
            output_dir,
            self._choose,
            lambda text, _: say(text),
        )
        self.asked = 0  # windows that its trainer opened itself
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rlprof-nsys")
        self.events.registered(
            session,
            (nsys_options.NAME,),
            on_demand=False,
            wrapped=True,
            gate="supervisor",
            began=session.began,
        )
        for spec in specs:
            self.captures.add(spec, specs)

    def _choose(
        self, spec: CaptureSpec, beside: Sequence[CaptureSpec], asked_by: str | None
    ) -> tuple[NsysSessionRecorder | None, str]:
        refused = "; ".join(validate(spec, Where(driver=driver_of(asked_by))).errors) if asked_by else ""
        if asked_by == TRAINER:
            refused = ""
        if refused or spec.each == "phase":
            return None, refused or nsys_options.PHASES_NEED
        return NsysSessionRecorder(self.session.name, spec, {**os.environ, "TMPDIR": self.session.tmpdir}), ""

    def run(self, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        """Do `work` after what was asked for before."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def quiet(self, step: int) -> bool:
        """Whether nothing opens or closes in `step`."""
        low, high = self.captures.inactive_step_range(step)
        return low <= step < high

    def reach(self, step: int) -> None:
        """The job's step `step` begins, and the process lives."""
        self.reached = step
        self._steps.store(step)

    def take_over(self, left: Left, step: int) -> ProcessCapture | None:
        """Go on after a supervisor that was killed in step `step`: what it has opened, the window that it
        left open too. Returns that window's capture.
        """
        self.asked = left.asked
        self.reach(step)
        for start, stop in left.begun:
            self.captures.taken(Window(start, stop))
        if (found := left.window) is None:
            return None
        window = Window(found.start, found.stop)
        spec = CaptureSpec(workers=(self.session.worker,), steps=Steps.of([window]))
        capture = self.captures.of_window(window, found.asked_by) or self.captures.add(
            spec, asked_by=found.asked_by, timed=window.stop is None
        )
        stop = step + 1 if window.stop is None else min(window.stop, step + 1)
        if not isinstance(capture.taker, NsysSessionRecorder):
            return None
        target = self._node_dir / "tmp" / found.report
        capture.taker.adopt(target)
        self.captures.adopt(capture, OpenWindow(window, None, list(range(window.start, stop))), target)
        return capture

    def open_steps(self, spec: CaptureSpec, window: Window, asked_by: str) -> None:
        """Open a window that begins with this step."""
        capture = self.captures.add(replace(spec, steps=Steps.of([window])), asked_by=asked_by)
        capture.gate.enter(window.start)

    def open_now(self, capture: ProcessCapture, window: Window) -> None:
        """Open the window of a timed capture."""
        assert isinstance(capture.gate, TimedGate)
        capture.gate.begin(window, window.start)

    def close_now(self, capture: ProcessCapture) -> None:
        """Close what `open_now` has opened, and forget the capture."""
        capture.gate.close(partial=False)
        self.captures.remove(capture)

    def end(self) -> None:
        """Close what is open, and wait for its reports: those who call bound it. Nothing opens any more."""
        self.captures.close_all()
        self.captures.finish(math.inf)
        self.events.write("ended", last_step=self.reached or None)
        self._thread.shutdown(wait=False)
