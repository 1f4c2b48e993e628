"""The steps of a node's processes, read as they come: from lines that only grow, and from mapped files.

The one that leads tells its steps among its events, the others in `marks/`. Nothing is told twice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlprof_ops.host import foreign
from rlprof_ops.runtime import marks
from rlprof_ops.runtime.marks import Now
from rlprof_ops.runtime.ranges.phase_times import Phase, phases_of

_STEP, _REGISTERED = b'"event": "step"', b'"event": "registered"'
_LEADS, _UNKNOWN = b'"event": "leads"', b'"event": "adapter_unknown"'
_MOST_UNKNOWN = 8
_WINDOW = (b'"event": "opened"', b'"event": "closed"', b'"event": "failed"')
_MOST_READ = 1 << 20  # of one file at one look
_ROTATE_BYTES = 4 << 20


@dataclass(frozen=True)
class ToldStep:
    """One step of one process; `trainer`: how many trainers, which counted from 1 too, it had before."""

    worker: str
    rank: int
    pid: int
    leads: bool
    step: int
    begin_ns: int
    seconds: float
    phases: dict[str, Phase]
    trainer: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """What orders the steps of a process."""
        return self.trainer, self.step

    @property
    def end_ns(self) -> int:
        return self.begin_ns + int(self.seconds * 1e9)


@dataclass(frozen=True)
class WindowMark:
    """A window that opened, closed or failed; `asked_by` is the capture on demand that wanted it. `pid`: of
    its process, 0 if that is not known.
    """

    event: str
    t_ns: int
    worker: str
    rank: int
    backend: str
    start: int
    asked_by: str
    pid: int = 0


class StepMarks:
    """All processes of one node that tell steps or windows. `by`: who tells the job's steps; `not_seen`: what
    adapters could not follow.
    """

    def __init__(self, node_dir: Path) -> None:
        self._node_dir = node_dir
        self._files: dict[Path, _Lines] = {}
        self._steps: list[ToldStep] = []
        self._windows: list[WindowMark] = []
        self.by = ""
        self.not_seen: dict[str, None] = {}

    def now(self) -> list[Now]:
        """Where each process is; those that have ended are left out."""
        found = []
        for path in self._files_of(marks.FOLDER, marks.SUFFIX):
            now = _now_of(path)
            if now is not None and now.worker and os.path.isdir(f"/proc/{now.pid}"):
                found.append(now)
        return found

    def look(self) -> tuple[list[ToldStep], list[WindowMark]]:
        """The steps that were done, and what became of windows, since the last look."""
        steps: list[ToldStep] = []
        windows: list[WindowMark] = []
        for folder in ("events", marks.FOLDER):
            for path in self._files_of(folder, ".jsonl"):
                lines = self._files.get(path)
                if lines is None:
                    lines = _Lines(path, _now_of(path.with_suffix(marks.SUFFIX)))
                    self._files[path] = lines
                for found in lines.new():
                    if isinstance(found, ToldStep):
                        steps.append(found)
                    elif isinstance(found, WindowMark):
                        windows.append(found)
                    else:
                        self._remark(found)
        return steps, windows

    def _remark(self, row: dict[str, Any]) -> None:
        if row.get("event") == "leads":
            if not row.get("log") or not self.by:  # a process goes before what the driver prints
                self.by = foreign.in_one_line(foreign.text(row.get("by")))
        elif len(self.not_seen) < _MOST_UNKNOWN:
            where = f"{foreign.text(row.get('trainer'))}: {foreign.text(row.get('module'))}"
            self.not_seen.setdefault(foreign.in_one_line(where))

    def _files_of(self, name: str, suffix: str) -> list[Path]:
        folder = self._node_dir / name
        try:
            with os.scandir(folder) as entries:
                return [folder / entry.name for entry in entries if entry.name.endswith(suffix)]
        except OSError:
            return []


def _now_of(path: Path) -> Now | None:
    try:
        return marks.unpack(path.read_bytes())
    except OSError:
        return None


class _Lines:
    """One file of lines. Those in `marks/` are nobody else's: they go when they are read."""

    def __init__(self, path: Path, who: Now | None) -> None:
        self._path = path
        self._ours = path.parent.name == marks.FOLDER
        self._who = None if who is None else (who.worker, who.rank, who.pid)
        self._offset = 0
        self._inode = 0
        self._last = self._last_ns = self._trainer = 0

    def new(self) -> Iterator[ToldStep | WindowMark | dict[str, Any]]:
        for line in self._read().split(b"\n"):
            if _STEP in line:
                told = self._step(line)
                # A second trainer of the process counts from 1 again; the clock may have been set back.
                if told is not None and (told.step > self._last or told.begin_ns > self._last_ns):
                    self._trainer += told.step < self._last
                    self._last, self._last_ns = told.step, told.begin_ns
                    yield replace(told, trainer=self._trainer)
            elif _REGISTERED in line:
                row = _row(line)
                if isinstance(row.get("worker"), str):
                    self._who = (row["worker"], _whole(row.get("rank")), _whole(row.get("pid")))
            elif _LEADS in line or _UNKNOWN in line:
                yield _row(line)
            elif any(mark in line for mark in _WINDOW):
                window = self._window(_row(line))
                if window is not None:
                    yield window

    def _read(self) -> bytes:
        """Whole lines since the last look."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            found = os.fstat(descriptor)
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._inode, self._offset = found.st_ino, 0
            if found.st_size == self._offset:
                return b""
            data = os.pread(descriptor, _MOST_READ, self._offset)
        except OSError:
            return b""
        finally:
            os.close(descriptor)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == _MOST_READ:  # one line that is longer than any of ours
            end = len(data)
        self._offset += end
        if self._ours and self._offset == found.st_size and self._offset > _ROTATE_BYTES:
            with contextlib.suppress(OSError):
                self._path.unlink()  # its writer begins a new one
        return data[:end]

    def _step(self, line: bytes) -> ToldStep | None:
        if self._who is None:
            return None
        row = _row(line)
        try:
            begin_ns, end_ns = int(row["begin_ns"]), int(row["end_ns"])
            phases = phases_of(row["phases"], begin_ns)
            step = int(row["step"])
        except (ValueError, TypeError, KeyError, IndexError):
            return None
        if not 0 < begin_ns <= end_ns or not 0 < step < 1 << 32 or row.get("cut"):
            return None
        return ToldStep(*self._who, not self._ours, step, begin_ns, (end_ns - begin_ns) / 1e9, phases)

    def _window(self, row: dict[str, Any]) -> WindowMark | None:
        steps = row.get("steps")
        if self._who is None or not isinstance(steps, list) or not steps:
            return None
        return WindowMark(
            str(row.get("event")),
            _whole(row.get("t_ns")),
            *self._who[:2],
            str(row.get("backend")),
            _whole(steps[0]),
            str(row.get("asked_by") or ""),
            self._who[2],
        )


def _row(line: bytes) -> dict[str, Any]:
    try:
        return foreign.an_object(foreign.parse(line))
    except ValueError:
        return {}


def _whole(value: Any) -> int:
    return foreign.whole(value) or 0
