"""What a node's keeper and its supervisors know of the driver, in memory that they share: no disk that is
full, read-only or broken keeps its exit code.
"""

from __future__ import annotations

import json
import mmap
from typing import Any

_SIZE_BYTES, _MOST_TEXT = 16 << 10, 1000
_END = b"\n"


class DriverStatus:
    """Written by the keeper alone, and had by whatever is forked from it. What is written last counts."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE_BYTES)
        self._used = 0

    def write(self, **values: Any) -> None:
        """`pid` and `started` of the driver, with `code` (negative for a signal) once it has ended, or
        `failed`: why there is none.
        """
        short = {name: each[:_MOST_TEXT] if isinstance(each, str) else each for name, each in values.items()}
        line = json.dumps(short).encode()
        end = self._used + len(line)
        self._memory[self._used : end] = line
        self._memory[end : end + 1] = _END  # last: a line without it is not read
        self._used = end + 1

    def read(self) -> dict[str, Any]:
        """What was written last; nothing before the driver was begun."""
        whole = self._memory[:].rpartition(_END)[0]
        values: dict[str, Any] = json.loads(whole.rpartition(_END)[2]) if whole else {}
        return values
