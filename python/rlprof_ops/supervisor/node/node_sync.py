"""The sync of a node's files, while the job runs and at its end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from asyncio.subprocess import Process

from rlprof_ops.collect.sync.__main__ import read_report, sync_command, write_deadline
from rlprof_ops.errors import EXIT_FAILED
from rlprof_ops.job.knobs import Settings
from rlprof_ops.supervisor.node.helper_processes import Helpers
from rlprof_ops.words import limit

_SAY_PART, _SAY_SECONDS = 0.2, 2.0  # of a step's seconds: to say that its own deadline came
_KILLED_SECONDS = 2.0  # for a process that got SIGKILL
_LEAST_SECONDS = 0.5


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
