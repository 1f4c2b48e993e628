"""What a supervisor and the keeper tell each other: when the job may be taken over, and what the one before
has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, field

SERVES, _ENDS = b"s", b"e"
_SECONDS = 5.0  # from a process's end until the keeper has told of it
_LOOK_S = 0.05
_BLOCK = 1 << 16


@dataclass
class Inherited:
    """`how` the supervisor before ended; `exits`: exit codes by pid, negative for a signal, of processes that
    lost their parent; `more`: a pipe that tells those that follow, -1 for none.
    """

    how: str
    exits: dict[int, int] = field(default_factory=dict)
    more: int = -1
    _rest: bytes = b""

    async def exit_code(self, pid: int) -> int | None:
        """Of a process that has ended; None where nobody knows it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _SECONDS
        while pid not in self.exits and loop.time() < until:
            self._hear()
            if pid not in self.exits:
                await asyncio.sleep(_LOOK_S)
        return self.exits.get(pid)

    async def listen(self) -> None:
        """Until cancelled: take what the keeper tells, so that it always finds room."""
        while True:
            self._hear()
            await asyncio.sleep(1)

    def _hear(self) -> None:
        if self.more < 0:
            return
        os.set_blocking(self.more, False)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.more, _BLOCK):
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    pid, _, code = line.partition(b" ")
                    self.exits[int(pid)] = int(code)


@dataclass(frozen=True)
class Reins:
    """A supervisor's side. Without a keeper (`says` -1) nobody takes over and nothing is inherited."""

    says: int = -1
    inherited: Inherited | None = None

    def serves(self) -> None:
        """From now on another supervisor can go on where this one is killed."""
        self._say(SERVES)

    def ends(self) -> None:
        """The job is being ended: what follows cannot be taken over."""
        self._say(_ENDS)

    def _say(self, word: bytes) -> None:
        if self.says >= 0:
            with contextlib.suppress(OSError):
                os.write(self.says, word)
