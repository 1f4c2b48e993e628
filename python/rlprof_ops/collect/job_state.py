"""`state.json` of a run folder: how the running job stands, in one file that the head alone writes.

`status`, `submit --wait` and `capture` look at it again and again, so a look costs two files however many
nodes and workers there are. A job that has ended is read from its records, see `harvest/run_state.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rlprof_ops.collect.event_logs import ProcessLog
from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir

NAME = "state.json"
HEARTBEAT_S = 30.0  # the head writes it at least so often
_FRESH_S = 3 * HEARTBEAT_S
_SCHEMA = 1
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class CaptureCounts:
    """Counts of captures. `planned` is None while no worker has registered, so that nobody knows how many
    there will be.
    """

    planned: int | None = None
    done: int = 0
    open: int = 0
    failed: int = 0
    missing: int = 0

    def __str__(self) -> str:
        return self.said("captures")

    def said(self, noun: str = "") -> str:
        """`4 of 9 captures (2 open)`, without a noun where one stands beside it."""
        if self.planned == 0:
            return "none planned"
        text = f"{self.done} of {'?' if self.planned is None else self.planned} {noun}".rstrip()
        more = [
            f"{count} {word}"
            for count, word in ((self.open, "open"), (self.failed, "failed"), (self.missing, "missing"))
            if count
        ]
        return text + (f" ({', '.join(more)})" if more else "")


class WorkerState(NamedTuple):
    """A process that has registered; of one worker and rank the latest."""

    worker: str
    rank: int
    node: str
    pid: int
    registered_ns: int
    on_demand: bool
    ended: bool


class Answered(NamedTuple):
    """What became of one worker's capture on demand: `path` in the run folder, or a reason."""

    asked_by: str
    worker: str
    rank: int
    path: str
    reason: str


@dataclass(frozen=True)
class JobState:
    """The head's latest word. `control` is where it listens, `address:port`; `steps` are [node, worker, rank,
    pid, last step entered]; `found`: what the recorder has found last.
    """

    written_ns: int
    control: str = ""
    nodes_up: int | None = None
    step: int | None = None
    captures: CaptureCounts = field(default_factory=CaptureCounts)
    workers: tuple[WorkerState, ...] = ()
    answers: tuple[Answered, ...] = ()
    steps: tuple[tuple[str, str, int, int, int], ...] = ()
    found: str = ""

    def to_json(self) -> str:
        # By hand: `asdict` copies every value of thousands of workers, while the head has steps to pass on.
        found = {"schema": _SCHEMA, **vars(self), "captures": vars(self.captures)}
        return json.dumps(found, separators=(",", ":"))

    @classmethod
    def from_json(cls, raw: bytes) -> JobState | None:
        """None for anything that is not a state of this schema."""
        try:
            data = foreign.an_object(foreign.parse(raw))
            return foreign.typed(data, cls) if data.get("schema") == _SCHEMA else None
        except ValueError:
            return None


def read(run: ContainedDir) -> JobState | None:
    """The head's latest word; None where it has not said any yet."""
    try:
        return JobState.from_json(run.read(NAME, _MOST_BYTES))
    except OSError:
        return None


def is_fresh(state: JobState) -> bool:
    """Whether the head lives, where no Slurm tells it."""
    return abs(time.time_ns() - state.written_ns) < _FRESH_S * 1e9


def latest(logs: Iterable[ProcessLog]) -> tuple[WorkerState, ...]:
    """Of each worker and rank the process that registered last (an actor may have been restarted)."""
    found: dict[tuple[str, int], ProcessLog] = {}
    for log in logs:
        before = found.get((log.worker, log.rank))
        if before is None or before.registered_ns < log.registered_ns:
            found[log.worker, log.rank] = log
    return tuple(
        WorkerState(log.worker, log.rank, log.node, log.pid, log.registered_ns, log.on_demand, log.ended)
        for log in found.values()
    )
