"""How a node's processes stand in their process groups, and what each does meanwhile, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.host import processes
from rlprof_ops.runtime import marks
from rlprof_ops.runtime.marks import Now
from rlprof_ops.runtime.on_demand import group_state
from rlprof_ops.runtime.on_demand.group_state import LOOK_S, STALE_NS

ALONE = -1
_GONE_NS = 3600 * 10**9
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class RankState:
    """One process. The collective from `group` to `timeout_s` has been open for `still_s`; where `group` is
    empty, none has begun or ended for so long. `state` is the letter of /proc, empty for one that is gone;
    `cores` and `mib_s` are what it and its children compute, read and write. `rank` ALONE: of no group.
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


class RankStates:
    """All processes of one node that have a process group, and those that tell their steps without one."""

    def __init__(self, node_dir: Path) -> None:
        self._folder = node_dir / marks.FOLDER
        self._work: dict[int, _Work] = {}

    def look(self, t_ns: int, told: Iterable[Now]) -> list[RankState]:
        workers = {now.pid: now.worker for now in told}
        found = []
        for path in self._folder.glob(f"[0-9]*{group_state.SUFFIX}"):
            pid, state = int(path.name.partition(".")[0]), group_state.read(path)
            if state is not None and t_ns - state.t_ns < _GONE_NS:
                found.append(self._state(t_ns, pid, workers.pop(pid, ""), state))
        alone = group_state.GroupState(t_ns, t_ns, "", ALONE)
        return found + [self._state(t_ns, pid, worker, alone) for pid, worker in workers.items()]

    def _state(self, t_ns: int, pid: int, worker: str, told: group_state.GroupState) -> RankState:
        letter = processes.state_of(pid)
        work = self._work.setdefault(pid, _Work())
        if letter:
            work.worker = worker or work.worker
            work.look(pid)
        knows = t_ns - told.t_ns < STALE_NS  # one that is stopped has told it before
        return RankState(
            pid,
            work.worker,
            told.world,
            told.rank,
            round((t_ns - told.since_ns) / 1e9, 1),
            told.group if knows else "",
            told.sequence,
            told.operation,
            told.members,
            told.timeout_s,
            told.at,
            letter.replace("X", ""),
            round(work.cores, 2) if letter else 0.0,
            round(work.mib_s, 1) if letter else 0.0,
        )


class _Work:
    """What a process and its children have done between two looks."""

    def __init__(self) -> None:
        self.worker = ""
        self.cores = self.mib_s = 0.0
        self._before: tuple[float, int, int] | None = None

    def look(self, pid: int) -> None:
        now = time.monotonic()
        if self._before is not None and now - self._before[0] < LOOK_S:
            return
        family = processes.with_descendants(pid)
        ticks, moved = sum(map(processes.cpu_ticks, family)), sum(map(processes.moved_bytes, family))
        if self._before is not None:  # a child that has ended takes its own away
            seconds = now - self._before[0]
            self.cores = max(0, ticks - self._before[1]) / _TICKS_PER_S / seconds
            self.mib_s = max(0, moved - self._before[2]) / (1 << 20) / seconds
        self._before = now, ticks, moved
