"""The job's step as this node knows it: a small mapped file that its supervisor writes and every process may
read."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NAME = "clock"
SOCKET = "clock.sock"
_MOST_PHASES, _NAME_BYTES = 8, 200
_FIELDS = struct.Struct("<5q" + f"q{_NAME_BYTES}s" * _MOST_PHASES)


@dataclass(frozen=True)
class ClockState:
    """`step` begun last (0: none), when, by the driver's clock; `running`: not ended yet; `asked` grows with
    every window that was asked for on demand, so that the driver waits for it once. `since_ns` and `phases`:
    since when this node knows of the step, and of the phases in it that windows count from, by its monotonic
    clock.
    """

    step: int = 0
    begin_ns: int = 0
    running: bool = False
    asked: int = 0
    since_ns: int = 0
    phases: Mapping[str, int] = field(default_factory=dict)


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
                os.write(descriptor, bytes(_FIELDS.size))
            access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
            self._map = mmap.mmap(descriptor, _FIELDS.size, access=access)
        except ValueError as error:  # an empty file: its writer is about to fill it
            raise OSError(f"{path}: {error}") from None
        finally:
            os.close(descriptor)

    def read(self) -> ClockState:
        data = self._map[:]
        while data != (again := self._map[:]):  # it is being written
            data = again
        values = _FIELDS.unpack(data)
        step, begin_ns, running, asked, since_ns = values[:5]
        told = zip(values[6::2], values[5::2], strict=True)
        phases = {name.rstrip(b"\0").decode(errors="replace"): at_ns for name, at_ns in told if at_ns}
        return ClockState(step, begin_ns, bool(running), asked, since_ns, phases)

    def store(self, state: ClockState) -> None:
        told: list[int | bytes] = []
        for name, at_ns in (*state.phases.items(), *[("", 0)] * _MOST_PHASES)[:_MOST_PHASES]:
            told += [at_ns, name.encode()[:_NAME_BYTES]]
        since = (int(state.running), state.asked, state.since_ns)
        self._map[:] = _FIELDS.pack(state.step, state.begin_ns, *since, *told)
