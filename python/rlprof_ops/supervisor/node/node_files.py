"""The sync of a node's files, while the job runs and at its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import Callable
from typing import Any

from rlprof_ops.collect.sync.__main__ import read_report, sync_command, write_deadline
from rlprof_ops.errors import EXIT_FAILED
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.supervisor.node.journal import Journal
from rlprof_ops.words import limit

_QUICK_RESTARTS = 20
_SAY_PART, _SAY_SECONDS = 0.2, 2.0  # of a step's seconds: to say that its own deadline came
_KILLED_SECONDS = 2.0  # for a process that got SIGKILL
_LEAST_SECONDS = 0.5
_LATE_ORDER_SECONDS = 2.0  # Slurm may signal the sync before our own order comes


def less_saying(seconds: float) -> float:
    """What a step may take of its seconds, so that it has time to say that they are over."""
    return seconds - min(_SAY_SECONDS, seconds * _SAY_PART)


class NodeFiles:
    """One node's sync process. `environment` gives what every process of the job on this node gets."""

    def __init__(
        self,
        settings: Settings,
        place: NodeContext,
        journal: Journal,
        environment: Callable[[], dict[str, str]],
        helpers: set[int],
    ) -> None:
        """`helpers`: pids that the drain leaves alone, where the sync's goes."""
        self.sync: asyncio.subprocess.Process | None = None
        self.clock: list[dict[str, Any]] = []  # what the probes of the node's clock found
        self.plugin_loaded = False
        self._settings, self._place, self._journal = settings, place, journal
        self._environment, self._helpers = environment, helpers
        self._restarting: asyncio.Task[None] | None = None

    async def start_sync(self) -> None:
        """Start the sync process, and start it again when it dies before the end."""
        sync = await self._start()
        if self._restarting is None:
            self._restarting = asyncio.create_task(self._restart(sync))

    async def _start(self, *more: str) -> asyncio.subprocess.Process:
        with open(self._place.folder.logs / "sync.log", "ab") as log:
            self.sync = await asyncio.create_subprocess_exec(
                *sync_command(self._place, self._settings),
                *more,
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._helpers.add(self.sync.pid)
        return self.sync

    async def _restart(self, sync: asyncio.subprocess.Process) -> None:
        """Start a sync that ended before the end again, and say so; it goes on where it was."""
        for number in itertools.count():
            code = await sync.wait()
            if code in (0, EXIT_FAILED, -signal.SIGTERM):  # Slurm told it to end, and most likely us as well
                await asyncio.sleep(_LATE_ORDER_SECONDS)
            self._journal.say(
                f"node {self._place.node}: sync ended with {code} while the job runs; starting it again"
            )
            await asyncio.sleep(1 if number < _QUICK_RESTARTS else 60)
            sync = await self._start()

    def stop_restarting(self) -> None:
        """The job ends: a sync that ends from now on has done its part."""
        if self._restarting is not None:
            self._restarting.cancel()

    async def last_sync(self, seconds: float) -> bool:
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
            sync = self.sync
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

    async def _end_of(self, sync: asyncio.subprocess.Process, seconds: float, kill_s: float) -> int | None:
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
