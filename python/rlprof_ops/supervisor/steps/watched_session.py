"""One nsys session that its supervisor watches: whose it is, its events, its captures, and what its events
tell of the windows that a killed supervisor had begun.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rlprof_ops.backends import Where, report_names, validate
from rlprof_ops.backends.nsight import nsys_options
from rlprof_ops.backends.nsight.session_recorder import NsysSessionRecorder
from rlprof_ops.backends.window_support import MAX_MB, TRAINER, driver_of
from rlprof_ops.host import foreign
from rlprof_ops.request import CaptureSpec, Steps, Window
from rlprof_ops.runtime.process.event_log import EventLog, StepFile
from rlprof_ops.runtime.process.session_file import Session
from rlprof_ops.window.captures import Captures, ProcessCapture
from rlprof_ops.window.gate import OpenWindow, TimedGate
from rlprof_ops.window.output_dir import OutputDir

Result = TypeVar("Result")


@dataclass(frozen=True)
class LeftOpen:
    """A window that was open: its steps, the name its report has in `tmp`, who asked for it, and `options`
    that still bound it.
    """

    start: int
    stop: int | None
    report: str
    asked_by: str | None
    options: dict[str, str]


@dataclass(frozen=True)
class Left:
    """`begun`: the steps of the windows of the request that were opened, or could not be. `asked`: how many
    the trainer has opened itself.
    """

    begun: frozenset[tuple[int, int | None]] = frozenset()
    window: LeftOpen | None = None
    asked: int = 0


def events_path(node_dir: Path, session: Session) -> Path:
    """The events of a session. Its process may have a file of its own, for captures that it takes itself."""
    stem = report_names.process_name(session.worker, session.rank, session.host, session.pid)
    return node_dir / "events" / f"{stem}.session.jsonl"


def has_events(node_dir: Path, session: Session) -> bool:
    """Whether a supervisor has watched the session."""
    return events_path(node_dir, session).exists()


def read_left(events: Path) -> Left:
    """What stands in one session's event file."""
    begun: set[tuple[int, int | None]] = set()
    window: LeftOpen | None = None
    asked = 0
    for row in foreign.read_rows(events):
        steps, what = row.get("steps"), row.get("event")
        if what not in ("opened", "closed", "failed") or not isinstance(steps, list) or len(steps) != 2:
            continue
        start, stop, asked_by = int(steps[0]), steps[1], row.get("asked_by")
        if asked_by is None:
            begun.add((start, stop))
        if what == "opened":
            asked += asked_by == TRAINER
            bounds = {MAX_MB: str(row[MAX_MB])} if MAX_MB in row else {}
            window = LeftOpen(start, stop, Path(str(row.get("report"))).name, asked_by, bounds)
        elif window is not None and (window.start, window.asked_by) == (start, asked_by):
            window = None
    return Left(frozenset(begun), window, asked)


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
        env = {**os.environ, "TMPDIR": self.session.tmpdir}
        return NsysSessionRecorder(self.session.name, spec, env, self.session.pid), ""

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
        spec = CaptureSpec(workers=(self.session.worker,), steps=Steps.of([window]), options=found.options)
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
