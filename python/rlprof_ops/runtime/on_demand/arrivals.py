"""When this process has called the latest collectives of its groups, for the recorder of its node.

PyTorch's flight recorder knows it of the latest 2000. To ask takes the interpreter for some 20 ms: all do it
at the same moment of each minute, so that ranks that wait for each other lose it together, not one after the
other, and so that the same collectives are seen of all.

NCCL's is not asked: for each collective that has not ended it queries a CUDA event, which PyTorch's watchdog
may free meanwhile, and which breaks the capture of a CUDA graph: that is for a job that hangs.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from rlprof_ops.host import atomic, foreign

SUFFIX = ".arrivals"  # in marks/: <pid>.arrivals
EVERY_S = 60.0
MOST_CALLS, _LEAST_CALLS = 2000, 100  # of a process
_CALLS_OF_ALL = 32_000
P2P = -1  # stands for the operation where two ranks alone exchange something
_MOST_MEMBERS = 4096
_MOST_BYTES = 64 << 10
_DUMP = "_dump_fr_trace"  # of every backend but NCCL
_WIDTH = 4


@dataclass(frozen=True)
class MetGroup:
    """A process group by the ranks in it, none where there are too many to tell. `backend`: `gloo`."""

    name: str
    description: str
    backend: str
    members: tuple[int, ...]


class Call(NamedTuple):
    """`t_ns`: when this rank has called it (Unix); `operation` is empty for what two ranks alone exchange."""

    group: int
    operation: str
    sequence: int
    t_ns: int


@dataclass(frozen=True)
class Arrivals:
    """One look of one process. `rows` are four numbers a call, the earliest first: its group and its
    operation by their places, by how much the sequence number is higher than in the group's call before, and
    the microseconds since the call before, of `base_ns` for the first.
    """

    t_ns: int
    world: str
    rank: int
    pid: int
    base_ns: int
    groups: tuple[MetGroup, ...]
    operations: tuple[str, ...]
    rows: tuple[int, ...]

    def calls(self) -> list[Call]:
        """All of them. Raises ValueError for rows that are none."""
        found: list[Call] = []
        sequences, t_ns = [0] * len(self.groups), self.base_ns
        rows = iter(self.rows)
        for group, operation, more, later_us in zip(rows, rows, rows, rows, strict=True):
            if not (0 <= group < len(self.groups) and P2P <= operation < len(self.operations)):
                raise ValueError("a call of no group or no operation")
            sequences[group] += more
            t_ns += later_us * 1000
            name = "" if operation == P2P else self.operations[operation]
            found.append(Call(group, name, sequences[group], t_ns))
        return found


def read(path: Path) -> Arrivals | None:
    """None for what is no such file."""
    try:
        return foreign.typed(foreign.read(path, _MOST_BYTES), Arrivals)
    except (OSError, ValueError):
        return None


def seconds_to_next(t_ns: int) -> float:
    """Until all processes look again."""
    return EVERY_S - t_ns / 1e9 % EVERY_S


def take(c10d: ModuleType, distributed: ModuleType, world: str, t_ns: int, pid: int) -> Arrivals | None:
    """What this process has called; None where it has called nothing that several ranks meet in."""
    groups: dict[tuple[str, str], MetGroup] = {}
    calls: list[tuple[int, str, int, tuple[str, str]]] = []
    dump = getattr(c10d, _DUMP, None)  # not before 2.8
    entries = pickle.loads(dump(True, False, False)).get("entries", ()) if dump is not None else ()
    for entry in entries:
        backend, _, operation = str(entry["profiling_name"]).partition(":")
        name, description = (*entry["process_group"], "")[:2]
        key = backend, name
        if key not in groups:
            members = members_of(distributed, name)
            few = members if len(members) <= _MOST_MEMBERS else ()
            groups[key] = MetGroup(name, description, backend, few)
        alone = entry["is_p2p"]
        sequence = 0 if alone else int(entry["collective_seq_id"])
        calls.append((int(entry["time_created_ns"]), "" if alone else operation, sequence, key))
    if not any(operation and len(groups[key].members) > 1 for _, operation, _, key in calls):
        return None
    calls.sort()
    places = {key: place for place, key in enumerate(groups)}
    found = [Call(places[key], operation, sequence, created) for created, operation, sequence, key in calls]
    most = max(_LEAST_CALLS, min(MOST_CALLS, _CALLS_OF_ALL // distributed.get_world_size()))
    return packed(found[-most:], tuple(groups.values()), world, distributed.get_rank(), t_ns, pid)


def members_of(distributed: ModuleType, name: str) -> tuple[int, ...]:
    """The ranks in the group that torch calls `name`, in order. Where this process is not in a group, torch
    keeps a number in its place.
    """
    groups = dict(distributed.distributed_c10d._world.pg_group_ranks)
    return next(
        (tuple(sorted(ranks)) for group, ranks in groups.items() if getattr(group, "group_name", "") == name),
        (),
    )


def packed(
    calls: Iterable[Call], groups: tuple[MetGroup, ...], world: str, rank: int, t_ns: int, pid: int
) -> Arrivals:
    """Calls in order of time as `Arrivals` has them."""
    rows: list[int] = []
    operations: dict[str, int] = {}
    sequences = [0] * len(groups)
    base_us = before_us = 0
    for call in calls:
        now_us = call.t_ns // 1000
        base_us = base_us or now_us
        before_us = before_us or now_us
        operation = operations.setdefault(call.operation, len(operations)) if call.operation else P2P
        more = call.sequence - sequences[call.group] if call.operation else 0
        sequences[call.group] += more
        rows += (call.group, operation, more, now_us - before_us)
        before_us = now_us
    return Arrivals(t_ns, world, rank, pid, base_us * 1000, groups, tuple(operations), tuple(rows))


def write(path: Path, found: Arrivals) -> None:
    """For `read`, with as many of the latest calls as it takes."""
    text = _text(found)
    while len(text) > _MOST_BYTES and found.rows:
        calls = found.calls()[len(found.rows) // _WIDTH // 2 + 1 :]
        found = packed(calls, found.groups, found.world, found.rank, found.t_ns, found.pid)
        text = _text(found)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    atomic.write(path, text, mode=0o600)


def _text(found: Arrivals) -> str:
    return json.dumps(asdict(found), separators=(",", ":"))
