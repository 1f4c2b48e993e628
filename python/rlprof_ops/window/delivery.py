"""What becomes of windows: their reports under their final names, and what the manifest is told of each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlprof_ops import backends
from rlprof_ops.backends import report_names
from rlprof_ops.backends.contract import CaptureError
from rlprof_ops.window.gate import OpenWindow
from rlprof_ops.window.output_dir import OutputDir
from rlprof_ops.window.report_file import move_into_place, unused


class ProfiledProcess(Protocol):
    """Whose windows they are: a process, or the session that its supervisor opens windows of."""

    @property
    def worker(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def pid(self) -> int: ...


class Events(Protocol):
    """Where the manifest's events go (`EventLog`)."""

    def write(self, event: str, **fields: object) -> None: ...


@dataclass(frozen=True)
class Delivery:
    """The windows of one process and one backend.

    Attributes:
        suffix: of the reports.
        root: what `path` of an event is relative to, with `profiles/` in it.
        tmp: where the profiler writes.
        say: tells a person of a failure; the second text is what it has in common with others of its kind.
    """

    who: ProfiledProcess
    backend: str
    suffix: str
    root: Path
    tmp: Path
    events: Events
    output_dir: OutputDir
    say: Callable[[str, str], None]

    def target(self, window: OpenWindow) -> Path:
        """Where the profiler is to write the report: under its final name, which no other file has."""
        self.tmp.mkdir(parents=True, exist_ok=True)
        return unused(self.tmp / self._name(window))

    def opened(self, window: OpenWindow, **more: object) -> None:
        """`more`: what somebody who goes on with the window has to know."""
        self.events.write("opened", **self._about(window), report=self._name(window), **more)

    def closed(self, window: OpenWindow, finished: Path, partial: bool, note: str = "") -> None:
        """Check a finished file, put it where it belongs, and say so. Raises CaptureError, OSError."""
        found = backends.get(self.backend).check(finished)
        if found.state != backends.OK:
            raise CaptureError(f"the report is {found.state}: {found.reason} ({finished})")
        who = self.who
        folder = self.root / report_names.report_folder(self.backend, who.worker, who.rank)
        final = move_into_place(finished, folder / self._name(window))
        self.events.write(
            "closed",
            **self._about(window),
            report=final.name,
            path=os.path.relpath(final, self.root),
            size_bytes=final.stat().st_size,
            partial=partial,
            seen=sorted(set(window.seen)),
            **({"taken_s": window.taken_s} if window.part is not None else {}),
            **({"reason": note} if note else {}),
        )
        self.output_dir.copy(final, self.backend, who.worker, who.rank)

    def failed(self, window: OpenWindow, reason: str) -> None:
        self.events.write("failed", **self._about(window), reason=reason)
        what = f"{self.backend} capture of {self.who.worker} rank {self.who.rank}"
        self.say(f"{what} failed, training goes on: {reason}", f"{what} {window.asked_by}")

    def _name(self, window: OpenWindow) -> str:
        who = self.who
        return report_names.report_name(
            who.worker,
            who.rank,
            window.window,
            window.phase,
            who.host,
            who.pid,
            self.suffix,
            window.asked_by,
        )

    def _about(self, window: OpenWindow) -> dict[str, object]:
        steps = [window.window.start, window.window.stop]
        about: dict[str, object] = {"backend": self.backend, "steps": steps, "phase": window.phase}
        if window.part is not None:
            about["part"] = str(window.part)
        return about if window.asked_by is None else {**about, "asked_by": window.asked_by}
