"""A process of the node that outlives supervisors: known by its pid and start time, whoever is its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlprof_ops.host import processes

_LOOK_S = 1.0  # where the kernel has no pidfd
_KILLED_S = 10.0


class NodeProcess:
    """`gone` is set once it has ended."""

    def __init__(self, pid: int, started: int) -> None:
        self.pid, self.started = pid, started
        self.gone = asyncio.Event()
        self._process = processes.Process(pid, started, "", ())
        self._child: subprocess.Popen[bytes] | None = None
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    def spawn(cls, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> NodeProcess:
        """Start it in a session of its own, its output at the end of `log`. Raises OSError."""
        with open(log, "ab") as output:
            child = subprocess.Popen(
                argv,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        made = cls(child.pid, processes.start_time(child.pid) or 0)
        made._child = child
        return made

    async def end(self, grace_s: float, *, group: bool = False) -> None:
        """SIGTERM to it, or to its process group, and SIGKILL to its group after `grace_s` seconds."""
        self._signal(signal.SIGTERM, group)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.gone.wait(), grace_s)
            return
        self._signal(signal.SIGKILL, True)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.gone.wait(), _KILLED_S)

    def _signal(self, number: signal.Signals, group: bool) -> None:
        if self._process.alive():
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(self.pid, number)

    async def _watch(self) -> None:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(self.pid)
            try:
                await self._end_of(handle)
            finally:
                os.close(handle)
        while self._process.alive():
            await asyncio.sleep(_LOOK_S)
        if self._child is not None:
            self._child.poll()
        self.gone.set()

    async def _end_of(self, handle: int) -> None:
        if not self._process.alive():  # another one has its number by now
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(handle, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(handle)
