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
from collections.abc import Callable, Iterator
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


def together(folder: Path, rank: int, tasks: int, seconds: float, node: str) -> Iterator[CheckResult]:
    """The part of one of `tasks` tasks; every wait ends after `seconds`."""
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
            yield CheckResult(
                "shared folder",
                FAIL,
                f"{folder} cannot be written from here: {error.strerror}",
                "give --shared a folder on storage that all nodes mount",
            )
            return
        began = time.monotonic()
        missing = _until(lambda: [number for number in others if _read(folder, number) is None], seconds)
        if missing:
            yield CheckResult(
                "shared folder",
                FAIL,
                f"{folder}: after {limit(seconds)} the files of {len(missing)} of {len(others)} other nodes"
                " are not seen",
                "it is not shared between the nodes: set BASE_LOG_DIR to storage that is, and with a"
                " container put it in MOUNTS",
            )
            return
        appeared = time.monotonic() - began
        yield from _rewritten(folder, rank, tasks, seconds, appeared, text)
        yield _clock(folder, rank)
        _write(folder / f"done{rank}", {})
        if server:  # answers until all have asked
            _until(lambda: [number for number in others if not (folder / f"done{number}").exists()], seconds)
    finally:
        if server:
            server[0].close()


def _rewritten(
    folder: Path, rank: int, tasks: int, seconds: float, appeared: float, text: dict[str, Any]
) -> Iterator[CheckResult]:
    """How long a changed file looks unchanged: the first task waits until all have read, then writes
    again.
    """
    _write(folder / f"read{rank}", {})
    if rank == 0:
        _until(
            lambda: [number for number in range(tasks) if not (folder / f"read{number}").exists()], seconds
        )
        _write(folder / "task0", {**text, "version": 2})
        yield CheckResult("shared folder", OK, f"{folder} is written and read by all {tasks} nodes")
        return
    _until(lambda: [number for number in range(tasks) if not (folder / f"read{number}").exists()], seconds)
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
