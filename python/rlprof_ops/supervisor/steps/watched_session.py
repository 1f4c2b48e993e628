"""One nsys session that its supervisor watches: whose it is, its events, and its open window."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlprof_ops.backends import names
from rlprof_ops.backends.nsight.recorder import NsysSessionRecorder
from rlprof_ops.request import CaptureSpec, Window
from rlprof_ops.runtime.capture_error import CaptureError
from rlprof_ops.runtime.process.event_log import EventLog, StepFile
from rlprof_ops.runtime.process.session_file import Session


@dataclass
class OpenWindow:
    """A window that is open, or being opened."""

    spec: CaptureSpec
    window: Window
    recorder: NsysSessionRecorder
    target: Path
    seen: list[int] = field(default_factory=list)
    asked_by: str | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    adopted: bool = False  # opened by a supervisor that was killed since
    late: bool = False  # opened after its step had begun, by one that took over


class WatchedSession:
    """One session: its identity, its event file, and its open window."""

    def __init__(self, session: Session, node_dir: Path, specs: tuple[CaptureSpec, ...]) -> None:
        self.session = session
        self.specs = specs
        events = events_path(node_dir, session)
        self.events = EventLog(events)
        self.steps = StepFile(events.with_suffix(".step"))
        self.open: OpenWindow | None = None
        self.asked = 0  # windows that its trainer opened itself
        self.taken: set[tuple[int, int]] = set()
        self.closing: asyncio.Task[None] | None = None
        self.events.registered(session, ("nsight",), on_demand=False, wrapped=True, gate="supervisor")

    def take(self, begun: frozenset[tuple[int, int | None]]) -> None:
        """Windows that a supervisor before has begun already, by their steps."""
        for start, stop in begun:
            for number, spec in enumerate(self.specs):
                if window_at(spec, start) == Window(start, stop):
                    self.taken.add((number, start))

    def spec_of(self, window: Window) -> CaptureSpec | None:
        """What asks for `window`."""
        return next((spec for spec in self.specs if window_at(spec, window.start) == window), None)


def events_path(node_dir: Path, session: Session) -> Path:
    """The events of a session. Its process may have a file of its own, for captures that it takes itself."""
    stem = names.process_name(session.worker, session.rank, session.host, session.pid)
    return node_dir / "events" / f"{stem}.session.jsonl"


def holds(window: Window, step: int) -> bool:
    return window.start <= step and (window.stop is None or step < window.stop)


def window_at(spec: CaptureSpec, step: int) -> Window | None:
    return next((window for window in spec.windows() if holds(window, step)), None)


def event_fields(current: OpenWindow) -> dict[str, Any]:
    found: dict[str, Any] = {
        "backend": "nsight",
        "steps": [current.window.start, current.window.stop],
        "phase": None,
    }
    return {**found, "asked_by": current.asked_by} if current.asked_by else found


def reason_of(error: Exception) -> str:
    if isinstance(error, CaptureError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
    return f"{type(error).__name__}: {error}"
