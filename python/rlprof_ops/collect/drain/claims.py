"""Who imports a raw capture: harvests of one run folder may run at the same time, also on other hosts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator

from rlprof_ops.host import foreign, processes
from rlprof_ops.host.contained_dir import ContainedDir

_FOLDER = ".recover"
_PAUSE_S = 0.5
_LATE_S = 60.0  # beyond its own deadline, after which a claim of another host counts no more
_LONGEST_S = 86_400.0
_MOST_BYTES = 1000


@contextlib.contextmanager
def claimed(tree: ContainedDir, path: str, wait_until: float, work_until: float) -> Iterator[bool]:
    """Claim the file `path` of `tree`, for work that ends before `work_until`, and wait for who has it, until
    `wait_until`; both in monotonic seconds. Gives False where it is still another's. The claim of a process
    that has ended is taken over.

    A claim is a file that only one can make. Of one that is dead the next number is made and never itself
    removed before: another could have taken it over meanwhile.
    """
    stem = f"{_FOLDER}/claim-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    number = _claim(tree, stem, work_until)
    while number is None and time.monotonic() < wait_until:
        time.sleep(_PAUSE_S)
        number = _claim(tree, stem, work_until)
    try:
        yield number is not None
    finally:
        for each in range(number if number is not None else -1, -1, -1):
            tree.unlink(f"{stem}.{each}")


def _claim(tree: ContainedDir, stem: str, work_until: float) -> int | None:
    """The number under which it is ours now; None where another has it."""
    number = 0
    while (there := tree.stat(f"{stem}.{number}")) is not None:
        if _lives(tree, f"{stem}.{number}", there.st_mtime):
            return None
        number += 1
    ends_s = time.time() + min(_LONGEST_S, max(0.0, work_until - time.monotonic())) + _LATE_S
    owner = [_here(), os.getpid(), processes.start_time(os.getpid()), ends_s]
    try:
        out = tree.open_write(f"{stem}.{number}")
    except FileExistsError:
        return None
    with os.fdopen(out, "wb") as stream:
        stream.write(json.dumps(owner).encode())
    return number


def _lives(tree: ContainedDir, claim: str, made_s: float) -> bool:
    """Whether the owner of a claim works on; of one that does not say whose it is, whether it is new."""
    try:
        where, pid, began, ends_s = foreign.parse(tree.read(claim, _MOST_BYTES))
        alive = where != _here() or processes.start_time(int(pid)) == began
        return alive and time.time() < float(ends_s)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, TypeError):
        return time.time() < made_s + _LATE_S


def _here() -> str:
    """This host, and which numbers its processes have here: containers may have their own."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()
