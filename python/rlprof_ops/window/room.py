"""Room on a node's disk: the program's own files and its output are there too, and no report takes the last
of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.words import size

_KEPT_MIB = 1024


def free_bytes(folder: Path) -> int:
    """What may still be written where `folder` is. Raises OSError."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def kept_bytes(folder: Path, mib: int | None) -> int:
    """How much of the file system of `folder` is kept free. `mib`: the knob's number; None: 1 GiB, of a file
    system of less than 10 GiB a tenth. Raises OSError.
    """
    if mib is not None:
        return mib << 20
    found = os.statvfs(folder)
    return min(_KEPT_MIB << 20, found.f_blocks * found.f_frsize // 10)


def lack_of_room(*folders: Path, more_bytes: int = 0) -> str:
    """Why no window opens, or stays open, whose recorder writes to `folders`, "" where there is room.
    `more_bytes`: what it has not written yet. Never raises: what cannot be asked is left to the recorder.
    """
    for folder in folders:
        try:
            free, kept = free_bytes(folder), kept_bytes(folder, _of_environment())
        except OSError:
            continue
        if free - more_bytes < kept:
            return (
                f"{size(free)} are free where {folder} is, and {size(kept)} stay free for the program"
                f" ({env_names.KEEP_FREE_MIB}): make room, lower that, or have RLPROF_NODE_ROOT on a larger"
                " file system"
            )
    return ""


def _of_environment() -> int | None:
    text = os.environ.get(env_names.KEEP_FREE_MIB, "")
    return int(text) if text.isascii() and text.isdigit() else None
