"""How a node's processes stand in their process groups, and what each does meanwhile, from /proc."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.host import ports, processes
from rlprof_ops.host.ports import Connection
from rlprof_ops.recorder.samples.family_work import FamilyWork
from rlprof_ops.recorder.samples.links import Links
from rlprof_ops.recorder.samples.memory_kills import MemoryKills
from rlprof_ops.runtime import marks
from rlprof_ops.runtime.marks import Now
from rlprof_ops.runtime.on_demand import group_state
from rlprof_ops.runtime.on_demand.group_state import STALE_NS, STILL_S
from rlprof_ops.runtime.process.event_log import EventLog
from rlprof_ops.runtime.process.failures import OUT_OF_MEMORY

ALONE = -1
_GONE_NS = 3600 * 10**9


@dataclass(frozen=True)
class RankState:
    """One process. The collective from `group` to `timeout_s` has been open for `still_s`; where `group` is
    empty, none has begun or ended for so long. `state` is the letter of /proc, empty for one that is gone;
    `cores` and `mib_s` are what it and its children compute, read and write; `awaits`: the kind of file
    system, or the other end of a connection, whose answer it waits for. `rank` ALONE: of no group. `told_ns`:
    when it has told this; `task`: the actor and the method that it runs for Ray, `WorkerDict.actor_update`;
    `idle_s`: how long it has computed, read and written next to nothing. `stuck` and `here` are what `Links`
    says of one that is in a collective or waits for a connection.
    """

    pid: int
    worker: str
    world: str
    rank: int
    still_s: float
    group: str
    sequence: int
    operation: str
    members: tuple[int, ...]
    timeout_s: float
    at: str
    state: str
    cores: float
    mib_s: float
    awaits: str = ""
    told_ns: int = 0
    task: str = ""
    idle_s: float = 0.0
    stuck: tuple[Connection, ...] = ()
    here: str = ""


class RankStates:
    """All processes of one node that have a process group, and those that tell their steps without one."""

    def __init__(self, node_dir: Path, node: str = "") -> None:
        self._folder, self._events, self._node = node_dir / marks.FOLDER, node_dir / "events", node
        self._work: dict[int, FamilyWork] = {}
        self._links: dict[int, Links] = {}
        self._kills = MemoryKills()

    def look(self, t_ns: int, told: Iterable[Now]) -> list[RankState]:
        workers = {now.pid: now.worker for now in told}
        found = []
        for path in self._folder.glob(f"[0-9]*{group_state.SUFFIX}"):
            pid, state = int(path.name.partition(".")[0]), group_state.read(path)
            if state is not None and t_ns - state.t_ns < _GONE_NS:
                found.append(self._state(t_ns, pid, workers.pop(pid, ""), state))
        self._note_kills({state.pid for state in found if state.state not in ("", "Z")})
        alone = group_state.GroupState(t_ns, t_ns, "", ALONE)
        return found + [self._state(t_ns, pid, worker, alone) for pid, worker in workers.items()]

    def _note_kills(self, alive: set[int]) -> None:
        """Leave beside a rank's own notes that the kernel has killed it; nobody else can tell."""
        for pid, limit_bytes, group in self._kills.look(alive):
            notes = EventLog(self._events / f"notes_{pid}.jsonl")
            notes.write(OUT_OF_MEMORY, pid=pid, host=self._node, limit_bytes=limit_bytes, group=group)

    def _state(self, t_ns: int, pid: int, worker: str, told: group_state.GroupState) -> RankState:
        letter = processes.state_of(pid)
        work = self._work.setdefault(pid, FamilyWork())
        if letter:
            work.worker = worker or work.worker
            work.look(pid)
        knows = t_ns - told.t_ns < STALE_NS  # one that is stopped has told it before
        # It tells which collective is open once that has stood for STILL_S: until its next look it may be in
        # one, and on a busy machine that look is late.
        told_still_ns = told.t_ns - told.since_ns
        still_ns = told_still_ns if knows and told_still_ns < STILL_S * 1e9 else t_ns - told.since_ns
        links, peer = self._links.setdefault(pid, Links()), ports.awaited(pid)
        if told.group or peer:
            links.look(pid)
        return RankState(
            pid,
            work.worker,
            told.world,
            told.rank,
            round(still_ns / 1e9, 1),
            told.group if knows else "",
            told.sequence,
            told.operation,
            told.members,
            told.timeout_s,
            told.at,
            letter.replace("X", ""),
            round(work.cores, 2) if letter else 0.0,
            round(work.mib_s, 1) if letter else 0.0,
            processes.awaited_storage(pid) or peer,
            told.t_ns,
            processes.rays_task(pid),
            round(time.monotonic() - work.worked_s, 1),
            links.stuck if told.group or peer else (),
            links.here,
        )
