"""Reads the events that training processes leave: which worker ran where, which windows opened, closed,
failed.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.request import Window

STEP_SUFFIX = ".step"
_MOST_PHASES = 1000
_MOST_BYTES = 64 << 20  # of one event file; a training process writes a few lines a window


@dataclass(frozen=True, slots=True)
class WindowEvent:
    """One line about a window: `event` is opened, closed or failed; `stop` is exclusive, None for an open
    end. `taken_s`: of a window inside a step, from when to when it was open, in seconds after what its `at`
    counts from. `asked_by`: the id of the capture on demand, or who else asked; empty where it was planned.
    """

    event: str
    t_ns: int
    backend: str
    start: int
    stop: int | None
    phase: str | None
    path: str = ""
    reason: str = ""
    partial: bool = False
    taken_s: tuple[float, ...] = ()
    asked_by: str = ""

    @property
    def window(self) -> Window:
        return Window(self.start, self.stop)

    @property
    def key(self) -> tuple[str, int, str | None]:
        return self.backend, self.start, self.phase


@dataclass(frozen=True, slots=True)
class Led:
    """What a process told that leads the job's steps: begin and end of each (Unix ns), and the names of its
    phases. `by`: whose steps they are in words; `log`: the driver's output tells them, at most `late_s` late.
    """

    by: str
    log: bool
    steps: dict[int, tuple[int, int]]
    phases: tuple[str, ...]
    late_s: float = 0.0

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last step that ended."""
        return (min(self.steps), max(self.steps)) if self.steps else None


@dataclass(frozen=True, slots=True)
class ProcessLog:
    """What one training process told. `last_step` is the last step it entered; None when it entered none.
    `began`: the job's step when it registered. `follows`: it takes its steps from the job's clock, and
    registered for a piece of work. `led`: where it leads. `backends`: what it may record.
    """

    node: str
    worker: str
    rank: int
    pid: int
    host: str
    world_size: int | None = None
    registered_ns: int = 0
    windows: tuple[WindowEvent, ...] = ()
    last_step: int | None = None
    ended: bool = False
    on_demand: bool = False
    began: int = 0
    follows: bool = False
    led: Led | None = None
    backends: tuple[str, ...] = ()


def unclosed(logs: Iterable[ProcessLog]) -> list[tuple[ProcessLog, WindowEvent]]:
    """Every window that opened and whose report is not there: open when its process ended, or closed in
    vain.
    """
    found = []
    for log in logs:
        closed = {event.key for event in log.windows if event.event == "closed"}
        found += [
            (log, event) for event in log.windows if event.event == "opened" and event.key not in closed
        ]
    return found


def read_node(folder: str | os.PathLike[str], node: str = "") -> list[ProcessLog]:
    """The logs in one `events/` folder; lines and files that make no sense are left out."""
    try:
        with ContainedDir(folder) as tree:
            return read_beneath(tree, "", node)
    except OSError:
        return []


def read_beneath(tree: ContainedDir, folder: str, node: str) -> list[ProcessLog]:
    """The same for a folder below an open one."""
    try:
        paths = sorted(path for path, _ in tree.files(folder) if path.endswith(".jsonl"))
    except OSError:
        return []
    found = (_read_log(tree, path, node) for path in paths)
    return [log for log in found if log is not None]


@dataclass
class Notes:
    """What processes told beside windows. `not_seen`: what the adapters could not follow, each once;
    `adapted`: the trainers that were recognised in a driver.
    `selected` and `begun`: workers with their ranks. `nsys_failed`: by a session's name without its process,
    what became of the last try to begin it. `changed`: what of the options a node's GPUs have, each once.
    """

    not_seen: list[str] = field(default_factory=list)
    adapted: list[str] = field(default_factory=list)
    selected: set[tuple[str, int]] = field(default_factory=set)
    begun: set[tuple[str, int]] = field(default_factory=set)
    nsys_failed: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def read(self, tree: ContainedDir, folder: str) -> None:
        """Add what the processes of one `events/` folder have told."""
        try:
            paths = sorted(
                path for path, _ in tree.files(folder) if "notes_" in path and path.endswith(".jsonl")
            )
        except OSError:
            return
        for path in paths:
            try:
                raw = tree.read(path, _MOST_BYTES)
            except OSError:
                continue
            for row in foreign.rows(raw):
                self._take(row)

    def _take(self, row: dict[str, Any]) -> None:
        event, rank = row.get("event"), foreign.whole(row.get("rank"))
        worker, reason = foreign.text(row.get("worker")), foreign.text(row.get("reason"))
        if event == "adapter_unknown":
            text = f"{foreign.text(row.get('trainer'))}: {foreign.text(row.get('module'))}: {reason}"
            if text not in self.not_seen:
                self.not_seen.append(text)
        elif event == "adapted" and (trainer := foreign.text(row.get("trainer"))) not in self.adapted:
            self.adapted.append(trainer)
        elif event == "nsys_options":
            self.changed += [reason] if reason not in self.changed else []
        elif event == "nsys_failed":
            self.nsys_failed[foreign.text(row.get("session"))] = reason
        elif event in ("selected", "begun") and worker and rank is not None:
            (self.selected if event == "selected" else self.begun).add((worker, rank))


def _read_log(tree: ContainedDir, relative: str, node: str) -> ProcessLog | None:
    try:
        raw = tree.read(relative, _MOST_BYTES)
    except OSError:
        return None
    told = LogBuilder(node)
    told.last_step = _last_step(tree, relative)
    for row in foreign.rows(raw):
        told.add(row)
    return told.log()


class LogBuilder:
    """A process's log as it grows, row by row."""

    def __init__(self, node: str) -> None:
        self.last_step: int | None = None
        self._node = node
        self._registered: dict[str, Any] | None = None
        self._windows: list[WindowEvent] = []
        self._ended = False
        self._leads: dict[str, Any] = {}
        self._steps: dict[int, tuple[int, int]] = {}
        self._phases: dict[str, None] = {}
        self._late_s = 0.0

    def add(self, row: dict[str, Any]) -> None:
        """Take one row; what makes no sense is left out."""
        event = row.get("event")
        if event == "registered" and self._registered is None:
            self._registered = row
        elif event in ("opened", "closed", "failed"):
            window = _window(row)
            if window is not None:
                self._windows.append(window)
        elif event == "step":
            self._step(row)
        elif event == "leads":
            self._leads = row
        elif event == "ended":
            self._ended = True
            late_s = row.get("late_s")
            self._late_s = float(late_s) if isinstance(late_s, (int, float)) else 0.0
            self.entered(foreign.whole(row.get("last_step")))

    def _step(self, row: dict[str, Any]) -> None:
        step, begin_ns, end_ns = (foreign.whole(row.get(name)) for name in ("step", "begin_ns", "end_ns"))
        if step is None or begin_ns is None or end_ns is None or row.get("cut"):
            return
        self._steps[step] = begin_ns, end_ns
        for phase in foreign.a_list(row.get("phases")):
            if isinstance(phase, list) and phase and len(self._phases) < _MOST_PHASES:
                self._phases.setdefault(foreign.text(phase[0]))

    def entered(self, step: int | None) -> None:
        """The process has entered a step."""
        self.last_step = step if self.last_step is None else max(self.last_step, step or 0)

    def log(self) -> ProcessLog | None:
        """None for a process that has not registered."""
        first = self._registered
        if first is None or not isinstance(first.get("worker"), str):
            return None
        return ProcessLog(
            node=self._node,
            worker=first["worker"],
            rank=foreign.whole(first.get("rank")) or 0,
            pid=foreign.whole(first.get("pid")) or 0,
            host=foreign.text(first.get("host")),
            world_size=foreign.whole(first.get("world_size")),
            registered_ns=foreign.whole(first.get("t_ns")) or 0,
            windows=tuple(self._windows),
            last_step=self.last_step,
            ended=self._ended,
            on_demand=first.get("on_demand") is True,
            began=foreign.whole(first.get("began")) or 0,
            follows=first.get("follows") is True,
            led=self._led(),
            backends=tuple(map(foreign.text, foreign.a_list(first.get("backends")))),
        )

    def _led(self) -> Led | None:
        if not self._leads and not self._steps:
            return None
        by, log = foreign.text(self._leads.get("by")), self._leads.get("log") is True
        return Led(foreign.in_one_line(by), log, self._steps, tuple(self._phases), self._late_s)


def _window(row: dict[str, Any]) -> WindowEvent | None:
    steps = row.get("steps")
    if (
        not isinstance(steps, list)
        or len(steps) != 2
        or foreign.whole(steps[0]) is None
        or not isinstance(row.get("backend"), str)
    ):
        return None
    phase = row.get("phase")
    return WindowEvent(
        # A job has thousands of these: the few words that they repeat are kept once.
        event=sys.intern(row["event"]),
        t_ns=foreign.whole(row.get("t_ns")) or 0,
        backend=sys.intern(row["backend"]),
        start=steps[0],
        stop=foreign.whole(steps[1]),
        phase=sys.intern(phase) if isinstance(phase, str) and phase else None,
        path=foreign.text(row.get("path")),
        reason=foreign.text(row.get("reason")),
        partial=row.get("partial") is True,
        taken_s=_interval(row.get("taken_s")),
        asked_by=foreign.text(row.get("asked_by")),
    )


def _interval(told: object) -> tuple[float, ...]:
    """From when to when a window inside a step was open; empty for another, and for what makes no sense."""
    if not isinstance(told, list) or len(told) != 2:
        return ()
    found = tuple(float(each) for each in told if isinstance(each, (int, float)) and math.isfinite(each))
    return found if len(found) == 2 else ()


def _last_step(tree: ContainedDir, relative: str) -> int | None:
    try:
        raw = tree.read(relative[: -len(".jsonl")] + STEP_SUFFIX, 8)
    except OSError:
        return None
    return step_of(raw)


def step_of(raw: bytes) -> int | None:
    """The step in a process's step file; None for none."""
    step = int.from_bytes(raw, "little", signed=True) if len(raw) == 8 else 0
    return step if 0 < step < 1 << 48 else None
