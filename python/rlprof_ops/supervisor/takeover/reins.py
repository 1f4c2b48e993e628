"""What a supervisor and its keeper tell each other, in JSON lines over a socket pair: when the job may be
taken over, what to start, who has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_START_SECONDS = 30.0
_END_SECONDS = 5.0  # from a process's end until the keeper has told of it
_LOOK_S = 0.02
_BLOCK = 1 << 16


@dataclass
class Lines:
    """What has come over one end of the pair. `open`: whether more may come."""

    open: bool = True
    _rest: bytes = b""

    def read(self, link: socket.socket) -> Iterator[dict[str, Any]]:
        """The messages that are there, without waiting for one."""
        while self.open:
            try:
                block = link.recv(_BLOCK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                block = b""
            self.open = bool(block)
            *lines, self._rest = (self._rest + block).split(b"\n")
            yield from map(json.loads, lines)


@dataclass
class Reins:
    """A supervisor's side. `link` None: there is no keeper, and nobody takes over. `before`: how the
    supervisor ended in whose place this one is; "" for the first. `exits`: exit codes by pid, negative for a
    signal, of what the keeper has started. `told`: the signal that came while there was no supervisor, 0 for
    none.
    """

    link: socket.socket | None = None
    before: str = ""
    exits: dict[int, int] = field(default_factory=dict)
    told: int = 0
    _answers: list[dict[str, object]] = field(default_factory=list)
    _lines: Lines = field(default_factory=Lines)

    def serves(self) -> None:
        """From now on another supervisor can go on where this one is killed."""
        self._say({"serves": True})

    def ends(self) -> None:
        """The job is being ended: what follows cannot be taken over."""
        self._say({"serves": False})

    async def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> int:
        """The pid of a process that the keeper has started in a session of its own, its output at the end of
        `log`. Raises OSError.
        """
        self._say({"start": list(argv), "env": dict(env), "cwd": str(cwd), "log": str(log)})
        loop = asyncio.get_running_loop()
        until = loop.time() + _START_SECONDS
        while loop.time() < until:
            self._hear()
            if self._answers:
                answer = self._answers.pop(0)
                if isinstance(pid := answer.get("started"), int):
                    return pid
                raise OSError(str(answer.get("failed")))
            await asyncio.sleep(_LOOK_S)
        raise OSError("the supervisor's keeper does not answer")

    async def exit_code(self, pid: int) -> int | None:
        """Of a process that has ended; None where nobody knows it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _END_SECONDS
        while pid not in self.exits and loop.time() < until:
            self._hear()
            if pid not in self.exits:
                await asyncio.sleep(_LOOK_S)
        return self.exits.get(pid)

    def _hear(self) -> None:
        if self.link is None:
            return
        for told in self._lines.read(self.link):
            if "ended" in told:
                self.exits[int(told["ended"])] = int(told["code"])
            else:
                self._answers.append(told)

    def _say(self, message: dict[str, object]) -> None:
        if self.link is not None:
            with contextlib.suppress(OSError):  # the keeper is gone, and with it the node's task
                self.link.sendall(json.dumps(message).encode() + b"\n")
