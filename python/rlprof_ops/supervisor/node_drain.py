"""What a supervisor does for its node's files: the sync while the job runs, then the ordered end, each
step of it bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rlprof_ops.collect.drain import steps
from rlprof_ops.collect.sync.__main__ import read_report
from rlprof_ops.errors import EXIT_FAILED
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.request import ProfileRequest
from rlprof_ops.supervisor import salvage
from rlprof_ops.supervisor.ray_process import RayProcess
from rlprof_ops.supervisor.steps.step_relay import StepRelay
from rlprof_ops.supervisor.steps.windows import Windows

_SYNC_QUICK_RESTARTS = 20
_LEAST_SECONDS, _MARGIN_SECONDS = 4.0, 3.0  # of a drain; between its end and Slurm's SIGKILL
_Result = TypeVar("_Result")


class Journal:
    """The supervisor's own log: one line an event, with the seconds since the job began, and how long a phase
    took.

    Writes to `<run folder>/logs/<name>.log` and, for what a person waits for, to the job's own output."""

    def __init__(self, path: Path, node: str, began: float) -> None:
        self._path = path
        self._node = node
        self._began = began
        self.phases_s: dict[str, float] = {}

    def note(self, text: str) -> None:
        """For the log alone."""
        line = f"[rlprof +{time.time() - self._began:7.2f}s {self._node}] {text}"
        with contextlib.suppress(OSError), open(self._path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def say(self, text: str) -> None:
        """For the log and for the job's output."""
        self.note(text)
        print(f"[rlprof +{time.time() - self._began:.1f}s] {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note how long the enclosed work took, also when it fails."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases_s[name] = round(time.monotonic() - start, 3)
            self.note(f"{name.replace('_', ' ')}: {self.phases_s[name]:.2f} s")


class Ending:
    """The half of a supervisor that is the same whatever the node was doing."""

    def __init__(
        self, settings: Settings, request: ProfileRequest, place: NodeContext, journal: Journal
    ) -> None:
        self.settings = settings
        self.request = request
        self.place = place
        self.journal = journal
        self.ray: RayProcess | None = None
        self.sync: asyncio.subprocess.Process | None = None
        self._sync_watch: asyncio.Task[None] | None = None
        self.on_demand: asyncio.Task[None] | None = None
        self.windows: Windows | None = None
        self.relay: StepRelay | None = None
        self.plugin_loaded = False
        self._started_ns = time.time_ns()
        self.clock: list[
            dict[str, Any]
        ] = []  # what the probes of the node's clock found, see host/clock_probe.py
        self.helpers: set[int] = set()
        self._recovered: tuple[str, ...] = ()
        self._failed: tuple[tuple[str, str], ...] = ()

    def environment(self) -> dict[str, str]:
        """What every process of the job on this node gets; the supervisor's other half knows."""
        raise NotImplementedError

    # ---- while the job runs
    # ------------------------------------------------------------------------------------

    async def start_sync(self, *more: str) -> None:
        place = self.place
        share = max(
            2.0, self.settings.number("RLPROF_DRAIN_SECONDS") / 2 - 2
        )  # so that it can still say what stayed behind
        with open(place.folder.logs / "sync.log", "ab") as log:
            self.sync = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rlprof_ops.collect.sync",
                f"--node-dir={place.folder.path}",
                f"--run-dir={place.run.path}",
                f"--node={place.node}",
                f"--interval={self.settings['RAY_LOG_SYNC_FREQUENCY']}",
                f"--deadline={share}",
                *more,
                env=self.environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if self._sync_watch is None and not more:
            self._sync_watch = asyncio.create_task(self._keep_syncing())

    async def _keep_syncing(self) -> None:
        """Start a sync that died before the end again, and say so; it goes on where it was."""
        for number in itertools.count():
            sync = self.sync
            assert sync is not None
            code = await sync.wait()
            self.journal.say(
                f"node {self.place.node}: sync ended with {code} while the job runs; starting it again"
            )
            await asyncio.sleep(1 if number < _SYNC_QUICK_RESTARTS else 60)
            await self.start_sync()

    # ---- the end
    # -----------------------------------------------------------------------------------------------

    def drain_budget_s(self) -> float:
        """Seconds for the whole drain of a job that Slurm is ending: it kills what is left after KillWait
        (scripts/lib/job.sh).
        """
        seconds = float(self.settings.number("RLPROF_DRAIN_SECONDS"))
        wait = os.environ.get("RLPROF_KILL_WAIT", "")
        return min(seconds, max(_LEAST_SECONDS, float(wait) - _MARGIN_SECONDS)) if wait.isdigit() else seconds

    async def close_profilers(self, seconds: float) -> None:
        """Steps 1 and 2 of the drain: close this job's windows, wait for its profilers, recover raw captures.

        What a step leaves of its share is the next one's; the first gets half, since `nsys stop` writes the
        report.
        """
        path, job, until = self.place.folder.path, self.place.job, time.monotonic() + seconds
        if self.on_demand is not None:
            self.on_demand.cancel()
        if self._asked():
            with self.journal.phase("close_windows"):
                if self.windows is not None:
                    await self._survived(self.windows.close(), seconds / 2, "close_windows")
                await self._bounded(seconds / 2, steps.close_windows, path, job)
        with self.journal.phase(
            "end_wrapped"
        ):  # without a request too: a trainer may have its own nsight options
            await self._bounded((until - time.monotonic()) / 2, steps.end_wrapped, path, job)
        if self._asked():
            with self.journal.phase("wait_profilers"):
                await self._bounded((until - time.monotonic()) / 2, steps.wait_profilers, path, job)
            with self.journal.phase("recover"):
                await self._recover(until - time.monotonic())

    def _asked(self) -> bool:
        """Whether there can be sessions of ours."""
        return bool(self.request) or self.settings["RLPROF_ON_DEMAND"] != "0"

    async def _recover(self, seconds: float) -> None:
        phase = await self._bounded(seconds, steps.recover, self.place.folder.path, self.place.node)
        if phase is not None:
            self._recovered += phase.done
            self._failed = (*(each for each in self._failed if each not in phase.failed), *phase.failed)

    async def _bounded(
        self, seconds: float, work: Callable[..., steps.Phase], *args: object, **options: object
    ) -> steps.Phase | None:
        """Run one step of the drain in a thread; a fault or a time-out is said and the drain goes on."""
        seconds = max(0.5, seconds)
        call = asyncio.to_thread(work, *args, say=self.journal.note, deadline_s=seconds, **options)
        return await self._survived(call, seconds + 2, work.__name__)

    async def _survived(
        self, call: Coroutine[Any, Any, _Result], seconds: float, name: str
    ) -> _Result | None:
        try:
            return await asyncio.wait_for(call, seconds)
        except asyncio.TimeoutError:
            self.journal.say(f"node {self.place.node}: {name} not done within {seconds:.0f} s; going on")
        except Exception as error:  # nothing here may keep the rest of the drain from happening
            self.journal.say(
                f"node {self.place.node}: {name} failed: {type(error).__name__}: {error}; going on"
            )
        return None

    async def stop_ray(self, profilers_s: float = 0.0) -> None:
        """Stop this node's Ray and end what is left of the job; nsys gets `profilers_s` for reports of
        workers that Ray has killed.
        """
        place = self.place
        with self.journal.phase("stop_ray"):
            if self.ray is not None:
                await self.ray.stop(timeout_s=10)
            if profilers_s and self._asked():
                await self._bounded(profilers_s, steps.wait_profilers, place.folder.path, place.job)
            reap = asyncio.to_thread(
                steps.reap, place.job, place.folder.path, exclude=self._ours(), say=self.journal.note
            )
            await self._survived(reap, 15, "reap")

    def _ours(self) -> frozenset[int]:
        """Pids that the reaper leaves alone: the supervisor, its sync, and what else it has started."""
        return frozenset({os.getpid(), os.getppid(), *self.helpers, *([self.sync.pid] if self.sync else [])})

    async def last_sync(self, seconds: float) -> bool:
        """The sync's last pass, once more when that process has died. True when everything came over.

        Slurm tells every process of a cancelled step to end: such a sync has made a last pass of its own,
        before the profilers were done, and that one does not count.
        """
        if self._sync_watch is not None:
            self._sync_watch.cancel()
        ordered_ns, until = time.time_ns(), time.monotonic() + seconds
        with self.journal.phase("last_sync"):
            if self.sync is not None and self.sync.returncode is None:
                self.sync.terminate()  # its order to make the last pass
            else:
                await self.start_sync("--last")
            code = await self._sync_ends(seconds)
            died = code not in (0, EXIT_FAILED)
            if code is not None and (died or not self._passed_since(ordered_ns)):
                why = (
                    f"sync ended with {code}"
                    if died
                    else "Slurm told the sync to end before the profilers were done"
                )
                self.journal.say(f"node {self.place.node}: {why}; one more last pass")
                await self.start_sync("--last")
                code = await self._sync_ends(max(2.0, until - time.monotonic()))
        return code == 0

    def _passed_since(self, ordered_ns: int) -> bool:
        """Whether the sync's latest pass is a last one that began at that time or later."""
        report = read_report(self.place.folder.path)
        return report is not None and report.last and report.started_ns >= ordered_ns

    async def _sync_ends(self, seconds: float) -> int | None:
        """The exit code of the sync: 0 all copied, 1 something not. None when it had to be killed after
        `seconds`.
        """
        assert self.sync is not None
        try:
            return await asyncio.wait_for(self.sync.wait(), seconds)
        except asyncio.TimeoutError:
            self.sync.kill()
            await self.sync.wait()
            self.journal.say(f"node {self.place.node}: the last sync was not done within {seconds:.0f} s")
            return None

    async def finish(self, seconds: float) -> None:
        """Steps 3 to 5 of the drain: stop Ray, last sync, the node's record; then the node folder goes, if
        all was copied.
        """
        await self.stop_ray(seconds / 4)
        if self._asked():
            await self._recover(seconds / 4)
        if self.relay is not None:
            self.relay.close()
        clean = await self.last_sync(seconds)
        record = await self._survived(asyncio.to_thread(self._write_record, clean), 10, "node record")
        clean = clean and (record is None or record["clean"])
        place = self.place
        if clean:
            await self._survived(
                asyncio.to_thread(steps.clear, place.folder.path, say=self.journal.note), 30, "clear"
            )
        else:
            self.journal.say(
                f"node {place.node}: files that could not be copied stay in {place.folder.path}; when the"
                f" storage takes them again, on node {place.node}:"
                f" {salvage.command_line(place, self.settings['RLPROF_NODE_ROOT'])}"
            )

    def _write_record(self, clean: bool) -> dict[str, Any]:
        place = self.place
        facts = {
            "role": "head" if place.is_head else "worker",
            "job": place.job,
            "started_ns": self._started_ns,
            "ended_ns": time.time_ns(),
            "plugin_loaded": self.plugin_loaded or place.folder.plugin_marker.exists(),
            "clean": clean,
            "clock": self.clock,
            "phases_s": self.journal.phases_s,
        }
        return steps.write_node_record(
            place.folder.path,
            place.run.path,
            place.node,
            facts,
            recovered=self._recovered,
            failed=self._failed,
        )
