"""JSON that somebody else may have written: bounded in size and depth, from a plain file alone."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

MOST_BYTES = 256 << 20


def parse(raw: bytes | str) -> Any:
    """What JSON says. Raises ValueError for everything that is none, or nested too deeply to be read."""
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it is too large for this machine's memory") from None


def read(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> Any:
    """The JSON of a file. Raises OSError; ValueError for no JSON, more than `most_bytes`, and for what
    is no plain file: opening a FIFO would wait for its writer.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is no plain file")
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes} bytes")
    return parse(raw)
