"""Trials of a profiler's options that worked, remembered across jobs: on the same image and driver they work
again.

One small file of the user's, `rlprof/trials.json` in `$XDG_CACHE_HOME` or ~/.cache. What others could have
written, what is damaged or too large is no memory; where none can be kept, each job tries for itself.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlprof_ops.host import atomic, foreign

FOLDER, NAME = "rlprof", "trials.json"
KEPT_S = 30 * 86_400.0
_SCHEMA, _MOST_BYTES, _MOST_ENTRIES = 1, 64 << 10, 400
_KEY = re.compile(r"[0-9a-f]{64}")
# What decides besides the options: the driver and its GPUs, the image, the kernel and what it lets us sample.
_NODE = (
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/gpus/*/information",
    "/etc/os-release",
    "/proc/version",
    "/proc/sys/kernel/perf_event_paranoid",
)
_OF_ONE_GPU = re.compile(rb"(?m)^(?!Model:).*\n?")  # a line that tells one GPU of a kind from another


def key_of(tool: str, words: Sequence[str]) -> str:
    """What a trial of `words` with the program `tool` stands for. Raises OSError where there is no tool."""
    path = os.path.realpath(tool)
    found = os.stat(path)
    parts = [path, str((found.st_size, found.st_mtime_ns)), str(os.geteuid()), *words]
    content = hashlib.sha256(json.dumps(parts).encode())
    for pattern in _NODE:
        content.update(f"\0{pattern}\0".encode())
        for name in sorted(glob.glob(pattern)):
            with contextlib.suppress(OSError, ValueError):
                text = foreign.read_bytes(name, _MOST_BYTES)
                content.update(_OF_ONE_GPU.sub(b"", text) if name.endswith("information") else text)
    return content.hexdigest()


def knows(key: str) -> bool:
    """Whether a trial of that key has worked. Never raises."""
    with contextlib.suppress(OSError, ValueError), _folder() as folder:
        return key in _read(folder)
    return False


def remember(key: str) -> None:
    """A trial of that key has worked. Never raises."""
    with contextlib.suppress(OSError, ValueError), _folder(create=True) as folder:
        worked = {**_read(folder), key: time.time()}
        latest = sorted(worked.items(), key=lambda item: item[1])[-_MOST_ENTRIES:]
        text = json.dumps({"schema": _SCHEMA, "worked": dict(latest)})
        atomic.write(Path(NAME), text, mode=0o600, dir_fd=folder)


@contextlib.contextmanager
def _folder(create: bool = False) -> Iterator[int]:
    """The open folder. Raises OSError where there is none that is the user's alone to write."""
    home = os.environ.get("HOME", "")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    if not os.path.isabs(cache):
        raise FileNotFoundError(cache)
    path = os.path.join(cache, FOLDER)
    if create:
        os.makedirs(path, mode=0o700, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _own(folder, stat.S_IWGRP | stat.S_IWOTH)
        yield folder
    finally:
        os.close(folder)


def _own(descriptor: int, forbidden: int) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & forbidden:
        raise PermissionError("others could have written it")


def _read(folder: int) -> dict[str, float]:
    """Key -> when it worked, by the Unix clock; empty where the file is none of ours."""
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.fdopen(os.open(NAME, flags, dir_fd=folder), "rb")
    except OSError:
        return {}
    with file:
        try:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}
            _own(file.fileno(), stat.S_IRWXG | stat.S_IRWXO)
            told = foreign.an_object(foreign.parse(foreign.bounded(file, _MOST_BYTES)))
            worked = foreign.an_object(told.get("worked")) if told.get("schema") == _SCHEMA else {}
        except (OSError, ValueError, TypeError, RecursionError):
            return {}
    now = time.time()
    return {
        key: float(when)
        for key, when in worked.items()
        if _KEY.fullmatch(key) and isinstance(when, (int, float)) and now - KEPT_S < when <= now + 60
    }
