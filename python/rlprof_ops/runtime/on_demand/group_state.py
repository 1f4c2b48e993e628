"""How this process stands in its process groups, told to the recorder of its node every few seconds.

torch counts the collectives that a group has begun and ended; asking for these two numbers takes 0.1 ms. Only
for one that stays open the flight recorder is asked which it is.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

from rlprof_ops.host import atomic, foreign
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.runtime import step_clock
from rlprof_ops.runtime.on_demand import arrivals
from rlprof_ops.runtime.on_demand.watcher import POLL_S, Watcher
from rlprof_ops.runtime.process.failures import IN_GROUP
from rlprof_ops.runtime.process.frames import places

SUFFIX = ".groups"  # in marks/: <pid>.groups
LOOK_S = 5.0
STALE_NS = int(4 * LOOK_S * 1e9)
STILL_S = 10.0  # counters that stand for so long are looked at more closely
_READ_S = 1.0
_MOST_BYTES = 64 << 10
_MOST_THREADS = 16  # beside the main one
_MOST_TAKE_NS = 200_000_000  # of CPU: somebody has set a far larger flight recorder
_NCCL = "_dump_nccl_trace_json"
_COUNTS = (_NCCL, "_dump_fr_trace_json")  # of NCCL, and of every other backend
_NOT_THE_USERS = re.compile(
    r"<|/(?:site|dist)-packages/|/rlprof_ops/|" + re.escape(f"{os.path.dirname(os.__file__)}/")
)
_CALL = re.compile(r"([A-Za-z_][\w.]*)\(")


@dataclass(frozen=True)
class GroupState:
    """One look. `since_ns`: no collective has begun or ended since. The fields from `group` to `timeout_s`
    are of the first collective that is open; `group` is empty where none is. `at`: where the user's code is.
    """

    t_ns: int
    since_ns: int
    world: str
    rank: int
    group: str = ""
    sequence: int = 0
    operation: str = ""
    members: tuple[int, ...] = ()
    timeout_s: float = 0.0
    at: str = ""


def read(path: Path) -> GroupState | None:
    """None for what is no such file."""
    try:
        return foreign.typed(foreign.read(path, _MOST_BYTES), GroupState)
    except (OSError, ValueError):
        return None


def is_open(entry: Mapping[str, object]) -> bool:
    """Whether an entry of the flight recorder has not ended. gloo never says `completed`: there `retired`
    means that a collective has ended, well or not. To NCCL, one that is retired without being completed has
    timed out.
    """
    if foreign.text(entry.get("profiling_name")).startswith("gloo:"):
        return not entry.get("retired")
    return entry.get("state") != "completed"


class GroupTeller:
    """Writes the file. All of it runs in the watcher's thread."""

    def __init__(self, path: Path, world: str) -> None:
        self._path, self._world = path, world
        self._counts: dict[str, dict[str, object]] = {}
        self._since_ns = self._looked_ns = 0
        self._open: GroupState | None = None
        self._calls: dict[tuple[str, int], str] = {}
        self._taken: dict[str, dict[str, object]] = {}  # the counts when arrivals were told last
        self._too_slow = False

    def tell(self, watcher: Watcher) -> None:
        """Look now, and again every `LOOK_S`."""
        c10d = sys.modules.get("torch._C._distributed_c10d")
        distributed = sys.modules.get("torch.distributed")
        if c10d is None or distributed is None or not distributed.is_initialized():
            watcher.later(POLL_S, lambda: self.tell(watcher))
            return
        watcher.later(LOOK_S, lambda: self.tell(watcher))
        if not self._looked_ns:
            self._later(watcher)
        self._look(c10d, distributed)

    def _later(self, watcher: Watcher) -> None:
        watcher.later(arrivals.seconds_to_next(time.time_ns()), lambda: self._tell_arrivals(watcher))

    def _tell_arrivals(self, watcher: Watcher) -> None:
        """When collectives were called, where any was since; and again when all processes do."""
        c10d, distributed = (
            sys.modules[name] for name in ("torch._C._distributed_c10d", "torch.distributed")
        )
        self._later(watcher)
        # Where a process meets others by NCCL too, what it does between the other collectives is not known.
        unknown = self._too_slow or self._counts.get(_NCCL) or not distributed.is_initialized()
        if unknown or self._counts == self._taken:
            return
        self._taken, began_ns = self._counts, time.thread_time_ns()
        found = arrivals.take(c10d, distributed, self._world, time.time_ns(), os.getpid())
        if found is not None:
            arrivals.write(self._path.with_suffix(arrivals.SUFFIX), found)
        self._too_slow = time.thread_time_ns() - began_ns > _MOST_TAKE_NS

    def _look(self, c10d: ModuleType, distributed: ModuleType) -> None:
        counts, now = _counts(c10d), time.time_ns()
        if not self._looked_ns:
            step_clock.note(IN_GROUP, world=self._world, rank=distributed.get_rank())
        if counts != self._counts or now - self._looked_ns > STALE_NS:  # or the whole job was suspended
            self._counts, self._since_ns, self._open = counts, now, None
        self._looked_ns = now
        state = GroupState(now, self._since_ns, self._world, distributed.get_rank())
        if not counts or now - self._since_ns < STILL_S * 1e9:
            self._write(state)
            return
        if self._open is None:
            self._open = _first_open(state, c10d, distributed) if _is_one_open(counts) else state
        self._write(replace(self._open, t_ns=now, at=self._at(*where())))

    def _at(self, file: str, line: int) -> str:
        if not file:
            return ""
        if (file, line) not in self._calls:
            self._calls = {(file, line): ""}
            OwnThread(self._read_call, file, line).start().join(_READ_S)
        call = self._calls.get((file, line))
        return f"in `{call}` at {file}:{line}" if call else f"at {file}:{line}"

    def _read_call(self, file: str, line: int) -> None:
        """What the line calls. In a thread of its own: the file system may not answer."""
        found = _CALL.search(linecache.getline(file, line))
        if found:
            self._calls[file, line] = found[1]

    def _write(self, state: GroupState) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        atomic.write(self._path, json.dumps(asdict(state)), mode=0o600)


def _dumped(c10d: ModuleType, collectives: bool) -> Iterator[tuple[str, dict[str, object]]]:
    for name in _COUNTS:
        take = getattr(c10d, name, None)  # torch has neither before 2.5
        if take is not None:
            yield name, foreign.an_object(foreign.parse(take(collectives, True)))


def _counts(c10d: ModuleType) -> dict[str, dict[str, object]]:
    """Of each backend's groups the numbers of the collectives begun last and ended last."""
    found = {name: foreign.an_object(data.get("pg_status")) for name, data in _dumped(c10d, False)}
    return {name: status for name, status in found.items() if status}


def _is_one_open(counts: Mapping[str, Mapping[str, object]]) -> bool:
    groups = [foreign.an_object(group) for status in counts.values() for group in status.values()]
    return any(
        int(group["last_enqueued_collective"]) > int(group["last_completed_collective"]) for group in groups
    )


def _first_open(state: GroupState, c10d: ModuleType, distributed: ModuleType) -> GroupState:
    """`state` with the first collective that is open."""
    for _, data in _dumped(c10d, True):
        entry = next(filter(is_open, foreign.a_list(data.get("entries"))), None)
        if entry is not None:
            name, description = (*entry["process_group"], "")[:2]
            return replace(
                state,
                group=description if description not in ("", "undefined") else f"group {name}",
                sequence=entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"],
                operation=entry["profiling_name"].partition(":")[2][:200],
                members=arrivals.members_of(distributed, name),
                timeout_s=float(entry.get("timeout_ms") or 0) / 1e3,
            )
    return state


def where() -> tuple[str, int]:
    """File and line of the innermost frame that is the user's own: of the main thread, else of another."""
    main = threading.main_thread()
    others = [thread for thread in threading.enumerate() if thread is not main]
    for thread in (main, *others[:_MOST_THREADS]):
        for file, line in places(thread.ident or 0):
            if not _NOT_THE_USERS.search(file):
                return file, line
    return "", 0
