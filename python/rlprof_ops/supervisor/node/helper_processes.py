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
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rlprof_ops.collect.sync.__main__ import read_report, sync_command, write_deadline
from rlprof_ops.errors import EXIT_FAILED
from rlprof_ops.host import foreign, processes
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.supervisor.control_channel import Message
from rlprof_ops.supervisor.node.journal import Journal
from rlprof_ops.words import limit

_LINE_LIMIT = 1 << 20
_MOST_UNSENT = 8 << 20  # of news that the recorder has not taken; more are dropped
_QUICK_RESTARTS = 20
_LATE_ORDER_SECONDS = 2.0  # Slurm may signal a helper before our own order comes
_END_SECONDS = 8.0
_SYNC, _RECORDER, _DISTIL = "collect.sync", "recorder", "analyze.distil"
_RESOURCE_PROBE = "supervisor.node.resource_probe"
_DRIVER_LOG = "supervisor.steps.driver_log"
_SAY_PART, _SAY_SECONDS = 0.2, 2.0  # of a step's seconds: to say that its own deadline came
_KILLED_SECONDS = 2.0  # for a process that got SIGKILL
_LEAST_SECONDS = 0.5


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
        self._resource_probe: Process | None = None

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
        process = self._resource_probe = await self.start(module(_RESOURCE_PROBE, address), "", talks=True)
        try:
            async for line in lines(process):
                told = json.loads(line)
                if isinstance(told, dict):
                    self.journal.say(f"found: of Ray's tasks, {told['tasks']}")
                else:
                    found(str(told))
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())

    def ask_tasks(self) -> None:
        """Have it be said what Ray's tasks do that have not ended."""
        if self._resource_probe is not None and self._resource_probe.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._resource_probe.stdin.write(b"\n")


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


class TalkingHelper:
    """One that is started again where it ends, until `end`. `on_row` gets each JSON object that it says."""

    def __init__(
        self,
        helpers: Helpers,
        name: str,
        argv: list[str],
        log: str,
        on_row: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        self._helpers, self._argv, self._log, self._on_row = helpers, argv, log, on_row
        self._process: Process | None = None
        self._keeping = asyncio.create_task(helpers.keep(name, self._run))

    def receive(self, line: str) -> None:
        """Tell it something; what it does not take is dropped."""
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            return
        with contextlib.suppress(OSError, RuntimeError):
            if process.stdin.transport.get_write_buffer_size() < _MOST_UNSENT:
                process.stdin.write(line.encode() + b"\n")

    async def end(self) -> None:
        """Have it keep what it has, and end: SIGTERM, and SIGKILL where that does not help."""
        self._keeping.cancel()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _run(self) -> int:
        process = self._process = await self._helpers.start(self._argv, self._log, talks=True)
        async for line in lines(process):
            for told in foreign.rows(line):
                with contextlib.suppress(ValueError):
                    await self._on_row(told)
        code = await process.wait()
        self._helpers.pids.discard(process.pid)
        return code


def recorder(helpers: Helpers, on_row: Callable[[dict[str, Any]], Awaitable[None]]) -> TalkingHelper:
    """The recorder. It says `{"news": …}`, `{"finding": …}` or `{"capture": …}`, and hears on the head other
    nodes' news and what the job waits for.
    """
    place = helpers.place
    words = [f"--node-dir={place.folder.path}", f"--node={place.node}", f"--nodes={' '.join(place.nodes)}"]
    if place.is_head:
        words += [f"--run-dir={place.run.path}", f"--job={place.job}"]
    return TalkingHelper(helpers, "the recorder", module(_RECORDER, *words), "recorder.log", on_row)


def log_follower(helpers: Helpers, words: list[str]) -> TalkingHelper:
    """The process that takes the job's steps from the driver's output; `words` are its arguments."""

    async def say(told: dict[str, Any]) -> None:
        helpers.journal.say(foreign.in_one_line(foreign.text(told.get("say"))))

    argv = module(_DRIVER_LOG, *words)
    return TalkingHelper(helpers, "the follower of the driver's output", argv, "driver_log.log", say)


def less_saying(seconds: float) -> float:
    """What a step may take of its seconds, so that it has time to say that they are over."""
    return seconds - min(_SAY_SECONDS, seconds * _SAY_PART)


class NodeSync:
    """One node's sync process."""

    def __init__(self, settings: Settings, helpers: Helpers) -> None:
        self.process: Process | None = None
        self._settings, self._helpers = settings, helpers
        self._place, self._journal = helpers.place, helpers.journal
        self._keeping: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Run it, again where it dies, until the job ends."""
        self._keeping = asyncio.create_task(self._helpers.keep("sync", self._run))

    def stop_restarting(self) -> None:
        """The job ends: a sync that ends from now on has done its part."""
        if self._keeping is not None:
            self._keeping.cancel()

    async def _run(self) -> int:
        return await (await self._start()).wait()

    async def _start(self, *more: str) -> Process:
        argv = [*sync_command(self._place, self._settings), *more]
        self.process = await self._helpers.start(argv, "sync.log")
        return self.process

    async def last_pass(self, seconds: float) -> bool:
        """The sync's last pass, once more when that process has died. True when everything came over.

        Slurm tells every process of a cancelled step to end: such a sync has made a last pass of its own,
        before the profilers were done, and that one does not count.
        """
        self.stop_restarting()
        ordered_ns, until = time.time_ns(), time.monotonic() + seconds
        # So that it can still say what stays, and be killed within the share.
        kill_s = min(_KILLED_SECONDS, seconds * _SAY_PART)
        write_deadline(self._place.folder.path, less_saying(seconds - kill_s))
        with self._journal.phase("last_sync"):
            sync = self.process
            if sync is not None and sync.returncode is None:
                sync.terminate()  # its order to make the last pass
            else:
                sync = await self._start("--last")
            code = await self._end_of(sync, until - time.monotonic() - kill_s, kill_s)
            died = code not in (0, EXIT_FAILED)
            if code is not None and (died or not self._passed_since(ordered_ns)):
                why = (
                    f"sync ended with {code}"
                    if died
                    else "Slurm told the sync to end before the profilers were done"
                )
                self._journal.note(f"node {self._place.node}: {why}; one more last pass")
                sync = await self._start("--last")
                code = await self._end_of(sync, until - time.monotonic() - kill_s, kill_s)
        return code == 0

    def _passed_since(self, ordered_ns: int) -> bool:
        """Whether the sync's latest pass is a last one that began at that time or later."""
        report = read_report(self._place.folder.path)
        return report is not None and report.last and report.started_ns >= ordered_ns

    async def _end_of(self, sync: Process, seconds: float, kill_s: float) -> int | None:
        """The exit code of the sync: 0 all copied, 1 something not. None when it had to be killed after
        `seconds`, whose end is waited for `kill_s`: in a dead file system it may never come.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(sync.wait(), max(_LEAST_SECONDS, seconds))
        with contextlib.suppress(ProcessLookupError):
            sync.kill()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(sync.wait(), kill_s)
        self._journal.say(f"node {self._place.node}: the last sync was not done within {limit(seconds)}")
        return None
