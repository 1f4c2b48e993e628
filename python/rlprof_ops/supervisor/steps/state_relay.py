"""How the job stands, told by every node to the head, which alone writes it down for those who watch.

A node reads the new lines of its own processes' events and their steps, from its own disk, and tells the head
what is new over the control channel. The head puts all of it into `state.json` (`collect/job_state.py`): at
once when a capture on demand was answered, else every few seconds when something changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlprof_ops.collect import event_logs, job_state
from rlprof_ops.collect.event_logs import LogBuilder
from rlprof_ops.collect.harvest.expected import count_captures
from rlprof_ops.collect.harvest.run_state import DriverRecord, Observed, world_of
from rlprof_ops.collect.job_state import Answered, CaptureCounts, JobState
from rlprof_ops.host import foreign
from rlprof_ops.host.background import BackgroundWriter, in_background
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.request import ProfileRequest
from rlprof_ops.supervisor.control_channel import Message

LOOK_S = 1.0  # at the node's own disk
WRITE_S = 5.0  # between two writes of what changed
_LOCAL_SECONDS, _COUNT_SECONDS = 60.0, 60.0
_MOST_LINE, _MOST_READ, _MOST_TEXT = 64 << 10, 1 << 20, 500
_ROWS_A_MESSAGE = 400
_MOST_ANSWERS = 8192
_MOST_PROCESSES = 100_000
_KEPT = frozenset(
    {
        *("event", "t_ns", "worker", "rank", "world_size", "pid", "host", "on_demand", "backend", "steps"),
        *("phase", "path", "reason", "partial", "last_step", "asked_by"),
    }
)


@dataclass(frozen=True)
class StateTold(Message):
    """What is new on a node: `rows` is JSON, [[[file, row], …], {file: step}]."""

    rows: str


class EventTail:
    """The new lines and steps of one node's processes."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._offsets: dict[str, int] = {}
        self._steps: dict[str, int] = {}

    def new(self) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, int]]:
        """Rows by file, and the steps that have changed since the last call."""
        rows: list[tuple[str, dict[str, Any]]] = []
        steps: dict[str, int] = {}
        with contextlib.suppress(OSError), ContainedDir(self._events) as folder:
            for path, found in folder.files():
                if "/" in path:
                    continue
                name = path.rpartition(".")[0]
                with contextlib.suppress(OSError):
                    if path.endswith(event_logs.STEP_SUFFIX):
                        step = event_logs.step_of(folder.read(path, 8))
                        if step is not None and self._steps.get(name) != step:
                            self._steps[name] = steps[name] = step
                    elif path.endswith(".jsonl") and found.st_size > self._offsets.get(path, 0):
                        rows += [(name, row) for row in self._rows(folder, path)]
        return rows, steps

    def _rows(self, folder: ContainedDir, path: str) -> Iterator[dict[str, Any]]:
        with open(folder.open_read(path), "rb", buffering=0) as file:
            start = self._offsets.get(path, 0)
            file.seek(start)
            block = file.read(_MOST_READ)
        end = block.rfind(b"\n") + 1
        self._offsets[path] = start + (end or (len(block) if len(block) == _MOST_READ else 0))
        for line in block[:end].splitlines():
            row = None
            with contextlib.suppress(ValueError, RecursionError):
                row = foreign.parse(line) if len(line) <= _MOST_LINE else None
            if isinstance(row, dict):
                yield {name: _short(value) for name, value in row.items() if name in _KEPT}


def _short(value: Any) -> Any:
    return value[:_MOST_TEXT] if isinstance(value, str) else value


async def send(events: Path, post: Callable[[StateTold], Awaitable[None]]) -> None:
    """On every node, until cancelled: send what is new."""
    tail = EventTail(events)
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            rows, steps = await in_background(tail.new, seconds=_LOCAL_SECONDS)
            while rows or steps:
                await post(StateTold(json.dumps([rows[:_ROWS_A_MESSAGE], steps])))
                rows, steps = rows[_ROWS_A_MESSAGE:], {}
        await asyncio.sleep(LOOK_S)


class StateFile:
    """The head's part: keeps what the nodes have told, and writes it down."""

    def __init__(
        self,
        path: Path,
        writer: BackgroundWriter,
        request: ProfileRequest,
        control: str,
        step: Callable[[], int],
    ) -> None:
        self._path, self._writer, self._request, self._control = path, writer, request, control
        self._step = step
        self._processes: dict[tuple[str, str], LogBuilder] = {}
        self._answers: dict[tuple[str, str, int], Answered] = {}
        self._identity: dict[tuple[str, str], tuple[str, int]] = {}
        self._selected: set[tuple[str, int]] = set()
        self._captures = CaptureCounts(None if request else 0)
        self._windows_changed = True
        self._urgent = asyncio.Event()
        self._written: JobState | None = None
        self.nodes_up: int | None = None
        self._found = ""

    def take_request(self, request: ProfileRequest) -> None:
        """The trainer's own configuration makes the job's request."""
        self._request = request
        self._windows_changed = True

    def found(self, text: str) -> None:
        """The recorder has found something."""
        self._found = text[:_MOST_TEXT]
        self._urgent.set()

    def up(self, count: int) -> None:
        """So many nodes of the cluster are alive."""
        self.nodes_up = count
        self._urgent.set()

    def receive(self, node: str, message: StateTold) -> None:
        """Take what a node of the job tells; what makes no sense is left out."""
        try:
            rows, steps = foreign.parse(message.rows)
            for name, row in rows:
                self._row(node, str(name), dict(row))
            for name, step in steps.items():
                known = self._processes.get((node, str(name)))
                if known is not None:
                    known.entered(int(step))
        except (ValueError, TypeError, AttributeError, RecursionError):
            return

    def _row(self, node: str, name: str, row: dict[str, Any]) -> None:
        key = node, name
        worker, rank = row.get("worker"), row.get("rank")
        if row.get("event") == "selected" and isinstance(worker, str) and isinstance(rank, int):
            self._selected.add((worker, rank))
        known = self._processes.get(key)
        if known is None:
            if len(self._processes) >= _MOST_PROCESSES:
                return
            known = self._processes[key] = LogBuilder(node)
        known.add(row)
        self._windows_changed = True
        if row.get("event") == "registered" and isinstance(row.get("worker"), str):
            self._identity.setdefault(key, (row["worker"], int(row.get("rank") or 0)))
            self._urgent.set()
        asked_by, who, event = row.get("asked_by"), self._identity.get(key), row.get("event")
        path = str(row.get("path") or "") if event == "closed" else ""
        if isinstance(asked_by, str) and who is not None and (path or event == "failed"):
            worker, rank = who
            reason = str(row.get("reason") or "")
            self._answers[asked_by, worker, rank] = Answered(asked_by, worker, rank, path, reason)
            self._urgent.set()
            while len(self._answers) > _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]

    async def keep(self) -> None:
        """Write what changed, until cancelled."""
        while True:
            await self.write()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), WRITE_S)
                await asyncio.sleep(LOOK_S)  # what comes together is written together

    async def write(self) -> None:
        """Write the state when it is new, or old enough for a sign of life."""
        self._urgent.clear()
        state = await self._state()
        before = self._written
        if before is not None:
            same = replace(state, written_ns=before.written_ns) == before
            if same and state.written_ns - before.written_ns < job_state.HEARTBEAT_S * 1e9:
                return
        self._written = state
        self._writer.put(self._path, state.to_json().encode(), lambda error: None)

    async def _state(self) -> JobState:
        found = [log for known in list(self._processes.values()) if (log := known.log()) is not None]
        logs = tuple(found)
        if self._windows_changed:
            self._windows_changed = False
            observed = Observed(
                "",
                self._request,
                (),
                DriverRecord(),
                str(EndCause.RUNNING),
                "",
                world_of({}, found, set(self._selected)),
                logs,
                {},
            )
            with contextlib.suppress(TimeoutError):
                counted = await in_background(count_captures, observed, seconds=_COUNT_SECONDS)
                self._captures = counted
        steps = tuple(
            (log.node, log.worker, log.rank, log.pid, log.last_step) for log in logs if log.last_step
        )
        return JobState(
            time.time_ns(),
            self._control,
            self.nodes_up,
            max((self._step(), *(each[4] for each in steps))) or None,
            self._captures,
            job_state.latest(logs),
            tuple(self._answers.values()),
            steps,
            self._found,
        )
