"""The job's step as this node knows it: a small mapped file that its supervisor writes and every process may
read."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

NAME = "clock"
SOCKET = "clock.sock"
_FIELDS = struct.Struct("<4q")


@dataclass(frozen=True)
class ClockState:
    """`step` begun last (0: none), when, by the driver's clock; `running`: not ended yet; `asked` grows with
    every window that was asked for on demand, so that the driver waits for it once.
    """

    step: int = 0
    begin_ns: int = 0
    running: bool = False
    asked: int = 0


class ClockFile:
    """One side of the mapping; whoever has the file open for writing is the supervisor."""

    def __init__(self, node_dir: str | os.PathLike[str], write: bool = False, keep: bool = False) -> None:
        """`keep`: the writer goes on from what stands there. Raises OSError when the file is not there
        (reader) or cannot be made (writer).
        """
        path = Path(node_dir, NAME)
        flags = (os.O_RDWR | os.O_CREAT) if write else os.O_RDONLY
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if write and not (keep and os.fstat(descriptor).st_size == _FIELDS.size):
                os.write(descriptor, _FIELDS.pack(0, 0, 0, 0))
            access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
            self._map = mmap.mmap(descriptor, _FIELDS.size, access=access)
        except ValueError as error:  # an empty file: its writer is about to fill it
            raise OSError(f"{path}: {error}") from None
        finally:
            os.close(descriptor)

    def read(self) -> ClockState:
        step, begin_ns, running, asked = _FIELDS.unpack_from(self._map)
        return ClockState(step, begin_ns, bool(running), asked)

    def store(self, state: ClockState) -> None:
        _FIELDS.pack_into(self._map, 0, state.step, state.begin_ns, int(state.running), state.asked)
