"""Is the folder really shared, and how stale does a node see it? Measured between the tasks of one step, with
their clocks.

Every task asks for all others' files before they are there, so that a client that remembers "no such file"
(NFS: up to a minute) is caught; then each writes its own, and looks how long the others' take; then the first
rewrites its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof_ops.check_result import FAIL, OK, WARN, CheckResult
from rlprof_ops.host import foreign
from rlprof_ops.host.clock_probe import ClockServer, measure
from rlprof_ops.submitit_job.rendezvous import own_address
from rlprof_ops.words import duration, limit

_PAUSE_S = 0.1
_STALE_S = 5.0
_SKEW_WARN_S, _SKEW_FAIL_S = 0.1, 5.0
_KEY = b"rlprof-doctor"


@dataclass(frozen=True)
class Start:
    """A task that has begun, on `node` of the `nodes` of Slurm's list. `late`: it has seen that another one
    waits no more.
    """

    node: str
    nodes: str
    late: bool


@dataclass(frozen=True)
class Unseen:
    """Whose files the task of `node` did not see in its time, and that in words."""

    node: str
    ranks: list[int]
    said: str


def together(
    folder: Path, rank: int, tasks: int, seconds: float, node: str, begun: Callable[[bool], None]
) -> Generator[CheckResult, None, Unseen | None]:
    """The part of one of `tasks` tasks; every wait ends after `seconds`. `begun` is told whether it is late.
    Returns whom it waited for in vain; `judged` knows what that means.
    """
    mine = folder / f"task{rank}"
    others = [number for number in range(tasks) if number != rank]
    for number in range(tasks):
        (folder / f"task{number}").exists()
    server = _server(rank)
    try:
        text = {
            "node": node,
            "address": server[1] if server else "",
            "port": server[0].port if server else 0,
            "version": 1,
        }
        try:
            _write(mine, text)
        except OSError as error:
            begun(False)
            yield CheckResult(
                "shared folder",
                FAIL,
                f"{folder} cannot be written from here: {error.strerror}",
                "give --shared a folder on storage that all nodes mount",
            )
            return None
        late = _parted(folder)
        begun(late)
        if late:
            yield _without_all(folder)
            return None
        began = time.monotonic()
        missing = _until(lambda: [number for number in others if _read(folder, number) is None], seconds)
        if missing:
            _write(folder / f"gone{rank}", {})
            said = f"after {limit(seconds)} the files of {len(missing)} of {len(others)} other nodes"
            return Unseen(node, missing, f"{folder}: {said} are not seen")
        appeared = time.monotonic() - began
        yield from _rewritten(folder, rank, tasks, seconds, appeared, text)
        yield _clock(folder, rank)
        _write(folder / f"done{rank}", {})
        if server:  # answers until all have asked
            _all(folder, "done", tasks, seconds)
        return None
    finally:
        if server:
            server[0].close()


def judged(unseen: Unseen, starts: Mapping[int, Start], names: Callable[[str], Sequence[str]]) -> CheckResult:
    """What it means that a task did not see others, by the tasks of the step that have begun. Those that were
    there have other storage; of those that were late or never began nothing is known. `names`: the nodes of
    Slurm's list.
    """
    there = [rank for rank in unseen.ranks if rank in starts and not starts[rank].late]
    if there:
        return CheckResult(
            "shared folder",
            FAIL,
            unseen.said,
            "it is not shared between the nodes: set BASE_LOG_DIR to storage that is, and with a"
            " container put it in MOUNTS",
            unseen.node,
        )
    late = [starts[rank].node for rank in unseen.ranks if rank in starts]
    absent = [rank for rank in unseen.ranks if rank not in starts]
    begun = {start.node for start in starts.values()}
    named = [node for node in names(next(iter(starts.values())).nodes) if node not in begun] if starts else []
    late += named if len(named) == len(absent) else [f"the node of task {rank}" for rank in absent]
    return CheckResult(
        "shared folder",
        WARN,
        f"{unseen.said}: {', '.join(late)} did not start in time",
        "whether it is shared is not known: give them longer (--wait), as for an image that is unpacked",
        unseen.node,
    )


def _rewritten(
    folder: Path, rank: int, tasks: int, seconds: float, appeared: float, text: dict[str, Any]
) -> Iterator[CheckResult]:
    """How long a changed file looks unchanged: the first task waits until all have read, then writes
    again.
    """
    _write(folder / f"read{rank}", {})
    if not _all(folder, "read", tasks, seconds):
        yield _without_all(folder)
        return
    if rank == 0:
        _write(folder / "task0", {**text, "version": 2})
        yield CheckResult("shared folder", OK, f"{folder} is written and read by all {tasks} nodes")
        return
    began = time.monotonic()
    stale = _until(lambda: [] if (_read(folder, 0) or {}).get("version") == 2 else [0], seconds)
    late = time.monotonic() - began
    if stale:
        yield CheckResult(
            "shared folder",
            WARN,
            f"{folder}: a file that another node rewrote still looks old after {limit(seconds)}",
            "reports are safe (each is written once, under a name of its own); status commands run here show"
            " old numbers: mount with a shorter actimeo",
        )
        return
    slow = max(appeared, late) > _STALE_S
    yield CheckResult(
        "shared folder",
        WARN if slow else OK,
        f"{folder}: others' files seen after {duration(appeared * 1e9)},"
        f" a change after {duration(late * 1e9)}",
        (
            "this client remembers old answers: expect status to lag by as much; mount with a shorter actimeo"
            if slow
            else ""
        ),
    )


def _all(folder: Path, what: str, tasks: int, seconds: float) -> bool:
    """Wait until all tasks are so far; False where one waits no more for another."""
    names = [folder / f"{what}{number}" for number in range(tasks)]
    _until(
        lambda: [] if _parted(folder) else [n for n, name in enumerate(names) if not name.exists()], seconds
    )
    return not _parted(folder)


def _parted(folder: Path) -> bool:
    return any(folder.glob("gone*"))


def _without_all(folder: Path) -> CheckResult:
    return CheckResult(
        "shared folder",
        WARN,
        f"{folder}: others' files are seen; how late changes are was not measured: one node waits no more",
        "give all nodes time to start (--wait)",
    )


def _server(rank: int) -> tuple[ClockServer, str] | None:
    if rank:
        return None
    address = own_address(os.environ)
    return ClockServer(address, _KEY), address


def _clock(folder: Path, rank: int) -> CheckResult:
    """This node's clock against the first one's."""
    if rank == 0:
        return CheckResult("clock", OK, "the others' are compared with this one")
    reference = _read(folder, 0) or {}
    found = measure(str(reference.get("address")), int(reference.get("port") or 0), _KEY)
    if found is None:
        return CheckResult(
            "clock",
            WARN,
            f"no UDP answer from {reference.get('node')} ({reference.get('address')})",
            "timelines of several hosts will rely on the nodes' own clocks; allow UDP between nodes",
        )
    off, error = found.offset_ns / 1e9, found.error_ns / 1e9
    state = FAIL if abs(off) > _SKEW_FAIL_S else WARN if abs(off) > _SKEW_WARN_S else OK
    return CheckResult(
        "clock",
        state,
        f"{'+' * (off > 0)}{duration(off * 1e9)} to {reference.get('node')} (within {duration(error * 1e9)})",
        "" if state == OK else "run chrony or ntpd on the nodes; reports are aligned by these clocks",
    )


def _until(left: Callable[[], list[int]], seconds: float) -> list[int]:
    """What is still left when it is empty, or time is over."""
    deadline = time.monotonic() + seconds
    while True:
        found = left()
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(_PAUSE_S)


def _read(folder: Path, number: int) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        return foreign.typed(foreign.read(folder / f"task{number}"), dict[str, Any])
    return None


def _write(path: Path, data: dict[str, Any]) -> None:
    """In place: a rename would give a new file, which no client takes for the old one."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(data))
        file.flush()
        os.fsync(file.fileno())
