"""One nsys session that its supervisor watches: whose it is, its events, and its open window."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rlprof_ops.backends import report_names
from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.backends.nsight.recorder import NsysSessionRecorder
from rlprof_ops.request import CaptureSpec, Window
from rlprof_ops.request.steps import window_at
from rlprof_ops.runtime.process.event_log import EventLog, StepFile
from rlprof_ops.runtime.process.session_file import Session
from rlprof_ops.window.delivery import Delivery
from rlprof_ops.window.gate import OpenWindow
from rlprof_ops.window.output_dir import OutputDir


@dataclass(kw_only=True)
class SessionWindow(OpenWindow):
    """A window of a session that is open, or being opened."""

    spec: CaptureSpec
    recorder: NsysSessionRecorder
    target: Path = Path()
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    adopted: bool = False  # opened by a supervisor that was killed since
    late: bool = False  # opened after its step had begun, by one that took over


class WatchedSession:
    """One session: its identity, its event file, and its open window. `say` tells a person of failures."""

    def __init__(
        self,
        session: Session,
        node_dir: Path,
        specs: tuple[CaptureSpec, ...],
        output_dir: OutputDir,
        say: Callable[[str], None],
    ) -> None:
        self.session = session
        self.specs = specs
        events = events_path(node_dir, session)
        self.events = EventLog(events)
        self._steps = StepFile(events.with_suffix(".step"))
        self.reached: int | None = None
        self.delivery = Delivery(
            session,
            "nsight",
            nsys_cli.SUFFIX,
            node_dir,
            node_dir / "tmp",
            self.events,
            output_dir,
            lambda text, _: say(text),
        )
        self.open: SessionWindow | None = None
        self.asked = 0  # windows that its trainer opened itself
        self.taken: set[tuple[int, int]] = set()
        self.closing: asyncio.Task[None] | None = None
        self.events.registered(
            session, ("nsight",), on_demand=False, wrapped=True, gate="supervisor", began=session.began
        )

    def reach(self, step: int) -> None:
        """The job's step `step` begins, and the process lives."""
        self.reached = step
        self._steps.store(step)

    def take(self, begun: frozenset[tuple[int, int | None]]) -> None:
        """Windows that a supervisor before has begun already, by their steps."""
        for start, stop in begun:
            for number, spec in enumerate(self.specs):
                if window_at(spec.windows(), start) == Window(start, stop):
                    self.taken.add((number, start))

    def spec_of(self, window: Window) -> CaptureSpec | None:
        """What asks for `window`."""
        return next((spec for spec in self.specs if window_at(spec.windows(), window.start) == window), None)


def events_path(node_dir: Path, session: Session) -> Path:
    """The events of a session. Its process may have a file of its own, for captures that it takes itself."""
    stem = report_names.process_name(session.worker, session.rank, session.host, session.pid)
    return node_dir / "events" / f"{stem}.session.jsonl"
