"""Our own processes beside a node's training: sync, recorder, the reader of finished reports, and what asks
Ray for what the job waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rlprof_ops.errors import EXIT_FAILED
from rlprof_ops.host import foreign, processes
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.supervisor.control_channel import Message
from rlprof_ops.supervisor.node.journal import Journal

_LINE_LIMIT = 1 << 20
_MOST_UNSENT = 8 << 20  # of news that the recorder has not taken; more are dropped
_QUICK_RESTARTS = 20
_LATE_ORDER_SECONDS = 2.0  # Slurm may signal a helper before our own order comes
_END_SECONDS = 8.0
_SYNC, _RECORDER, _DISTIL = "collect.sync", "recorder", "analyze.distil"
_RESOURCE_PROBE = "supervisor.node.resource_probe"
_DRIVER_LOG = "supervisor.steps.driver_log"


@dataclass(frozen=True)
class Recorded(Message):
    """A node's recorder has news for the head's; `news` is its line."""

    news: str


class Helpers:
    """The helpers of one node. `environment` gives what every process of the job on this node gets."""

    def __init__(
        self, place: NodeContext, journal: Journal, environment: Callable[[], dict[str, str]]
    ) -> None:
        self.place, self.journal = place, journal
        self.pids: set[int] = set()  # the drain leaves them alone
        self._environment = environment

    async def start(self, argv: list[str], log: str, *, talks: bool = False) -> Process:
        """Start one, its output at the end of that log; of one that `talks` we hear it, and it hears us.
        Raises OSError.
        """
        with open(self.place.folder.logs / log if log else os.devnull, "ab") as file:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=self._environment(),
                stdin=PIPE if talks else DEVNULL,
                stdout=PIPE if talks else file,
                stderr=file,
                start_new_session=True,
                limit=_LINE_LIMIT,
            )
        self.pids.add(process.pid)
        return process

    async def keep(self, name: str, run: Callable[[], Awaitable[int]]) -> None:
        """Run one, and again where it ends while the job runs: it goes on where it was. Until cancelled."""
        for number in itertools.count():
            try:
                code = await run()
                if code in (0, EXIT_FAILED, -signal.SIGTERM):  # Slurm told it to end, and most likely us too
                    await asyncio.sleep(_LATE_ORDER_SECONDS)
                how = f"ended with {code} while the job runs"
            except OSError as error:
                how = f"does not start: {error}"
            self.journal.say(f"node {self.place.node}: {name} {how}; starting it again")
            await asyncio.sleep(1 if number < _QUICK_RESTARTS else 60)

    async def distil(self, memory_mib: int) -> Process:
        """Read finished reports beside the training. Raises OSError."""
        words = (f"--node-dir={self.place.folder.path}", f"--memory-mib={memory_mib}")
        return await self.start(module(_DISTIL, *words), "distil.log")

    def dismiss(self, process: Process) -> None:
        """Have one end at once; nobody waits, and what is left of it the drain ends."""
        self.pids.discard(process.pid)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    async def watch_resources(self, address: str, found: Callable[[str], None]) -> None:
        """Until cancelled: call `found` with what the job waits for, each time that this changes. `address`:
        IP:PORT of Ray's GCS.
        """
        process = await self.start(module(_RESOURCE_PROBE, address), "", talks=True)
        try:
            async for line in lines(process):
                found(str(json.loads(line)))
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())


def module(name: str, *words: str) -> list[str]:
    """The command line of one of our modules."""
    return [sys.executable, "-m", f"rlprof_ops.{name}", *words]


def is_helper(process: processes.Process) -> bool:
    """Whether it is one that an earlier supervisor has left."""
    known = (module(each)[1:] for each in (_SYNC, _RECORDER, _DISTIL, _RESOURCE_PROBE, _DRIVER_LOG))
    return list(process.argv[1:3]) in known


async def lines(process: Process) -> AsyncIterator[bytes]:
    """What a process says, until it is silent for good; a line that is too long is left out."""
    while process.stdout is not None:
        try:
            line = await process.stdout.readline()
        except ValueError:
            continue
        if not line:
            return
        yield line


async def _end(process: Process) -> None:
    """SIGTERM, and SIGKILL where that does not help."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


class Recording:
    """The recorder: `on_told` gets what it says: `{"news": …}`, `{"finding": …}`, `{"capture": …}`."""

    def __init__(self, helpers: Helpers, on_told: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        self._helpers, self._on_told = helpers, on_told
        self._process: Process | None = None
        self._keeping = asyncio.create_task(helpers.keep("the recorder", self._run))

    def hear(self, news: str) -> None:
        """A line for the head's recorder: another node's news, or what the job waits for."""
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            return
        with contextlib.suppress(OSError, RuntimeError):
            if process.stdin.transport.get_write_buffer_size() < _MOST_UNSENT:
                process.stdin.write(news.encode() + b"\n")

    async def end(self) -> None:
        """Have it keep what it has, before the last sync."""
        self._keeping.cancel()
        if self._process is not None:
            await _end(self._process)

    async def _run(self) -> int:
        place = self._helpers.place
        words = [
            f"--node-dir={place.folder.path}",
            f"--node={place.node}",
            f"--nodes={' '.join(place.nodes)}",
        ]
        if place.is_head:
            words += [f"--run-dir={place.run.path}", f"--job={place.job}"]
        process = await self._helpers.start(module(_RECORDER, *words), "recorder.log", talks=True)
        self._process = process
        async for line in lines(process):
            for told in foreign.rows(line):
                with contextlib.suppress(ValueError):
                    await self._on_told(told)
        code = await process.wait()
        self._helpers.pids.discard(process.pid)
        return code


class LogFollower:
    """The process that takes the job's steps from the driver's output; `words` are its arguments."""

    def __init__(self, helpers: Helpers, words: list[str]) -> None:
        self._helpers, self._words = helpers, words
        self._process: Process | None = None
        self._keeping = asyncio.create_task(helpers.keep("the follower of the driver's output", self._run))

    async def end(self) -> None:
        """Have it take what the driver said last, and end."""
        self._keeping.cancel()
        if self._process is not None:
            await _end(self._process)

    async def _run(self) -> int:
        process = await self._helpers.start(module(_DRIVER_LOG, *self._words), "driver_log.log", talks=True)
        self._process = process
        async for line in lines(process):
            for told in foreign.rows(line):
                self._helpers.journal.say(foreign.in_one_line(foreign.text(told.get("say"))))
        code = await process.wait()
        self._helpers.pids.discard(process.pid)
        return code
