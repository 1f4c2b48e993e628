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
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rlprof_ops import env_names
from rlprof_ops.collect.drain import steps
from rlprof_ops.collect.drain.sequence import Budget, DrainSequence, Step
from rlprof_ops.collect.sync.__main__ import read_report, sync_command, write_deadline
from rlprof_ops.errors import EXIT_FAILED
from rlprof_ops.host.background import BackgroundWriter, in_background
from rlprof_ops.host.contained_dir import PinnedDir
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.supervisor import salvage
from rlprof_ops.words import duration, limit

_SYNC_QUICK_RESTARTS = 20
_LEAST_SECONDS, _MARGIN_SECONDS = 4.0, 3.0  # of a drain; between its end and Slurm's SIGKILL
_SAY_PART, _SAY_SECONDS = 0.2, 2.0  # of a step's seconds: to say that its own deadline came
_END_SECONDS = 5.0
_KILLED_SECONDS = 2.0  # for a process that got SIGKILL
_LEAST_SYNC_SECONDS, _LEAST_CLEAR_SECONDS = 0.5, 1.0
_Result = TypeVar("_Result")


def _less_saying(seconds: float) -> float:
    """What a step may take of its seconds, so that it has time to say that they are over."""
    return seconds - min(_SAY_SECONDS, seconds * _SAY_PART)


class Journal:
    """The supervisor's own log: one line an event, with the seconds since the job began, and how long a phase
    took.

    Writes to `<run folder>/logs/<name>.log`, by a thread of its own, to `logs/supervisor.log` of the node
    folder, and, for what a person waits for, to the job's own output.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        began: float,
        local: Path | None = None,
        run: PinnedDir | None = None,
    ) -> None:
        if run is not None:
            run.say = self.say
        self.writer = BackgroundWriter(run)
        self.phases_s: dict[str, float] = {}
        self._path, self._local = path, local
        self._node = node
        self._began = began

    def note(self, text: str) -> None:
        """For the log alone."""
        line = f"[rlprof +{time.time() - self._began:7.2f}s {self._node}] {text}\n".encode(errors="replace")
        if self._local is not None:
            with contextlib.suppress(OSError), open(self._local, "ab", buffering=0) as file:
                file.write(line)
        self.writer.append(self._path, line)

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
            self.note(f"{name.replace('_', ' ')}: {duration(self.phases_s[name] * 1e9)}")


class NodeDrain:
    """A node's sync while the job runs and its drain at the end; a supervisor has one.

    `environment` gives what every process of the job on this node gets; `sessions` says whether there can be
    nsys sessions of ours; `spare` are more pids that the drain leaves alone.
    """

    def __init__(
        self,
        settings: Settings,
        place: NodeContext,
        journal: Journal,
        environment: Callable[[], dict[str, str]],
        *,
        sessions: bool,
        spare: Collection[int] = (),
    ) -> None:
        self.run = place.pinned_run()
        self.sync: asyncio.subprocess.Process | None = None
        self.clock: list[dict[str, Any]] = []  # what the probes of the node's clock found
        self.plugin_loaded = False
        self.started_ns = time.time_ns()
        self._settings, self._place, self._journal = settings, place, journal
        self._environment, self._spare = environment, spare
        self._sync_watch: asyncio.Task[None] | None = None
        self._sequence = DrainSequence(
            place.folder.path, place.run.path, place.node, place.job, sessions=sessions, say=journal.note
        )

    # ---- while the job runs
    # ------------------------------------------------------------------------------------

    async def start_sync(self, *more: str) -> None:
        """Start the sync process, and start it again when it dies before the end."""
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
        if self._sync_watch is None and not more:
            self._sync_watch = asyncio.create_task(self._keep_syncing())

    async def _keep_syncing(self) -> None:
        """Start a sync that died before the end again, and say so; it goes on where it was."""
        for number in itertools.count():
            sync = self.sync
            assert sync is not None
            code = await sync.wait()
            self._journal.say(
                f"node {self._place.node}: sync ended with {code} while the job runs; starting it again"
            )
            await asyncio.sleep(1 if number < _SYNC_QUICK_RESTARTS else 60)
            await self.start_sync()

    # ---- the end
    # -----------------------------------------------------------------------------------------------

    def cancelled_budget_s(self) -> float:
        """Seconds for the whole drain of a job that Slurm is ending: it kills what is left after KillWait
        (scripts/lib/job.sh).
        """
        seconds = float(self._settings.number("RLPROF_DRAIN_SECONDS"))
        wait = os.environ.get(env_names.KILL_WAIT, "")
        return min(seconds, max(_LEAST_SECONDS, float(wait) - _MARGIN_SECONDS)) if wait.isdigit() else seconds

    async def close_profilers(self, budget: Budget) -> None:
        """Everything of the drain that Ray has to live for."""
        for step in self._sequence.before_ray_stops():
            await self._run(step, budget)

    async def finish(self, budget: Budget, stop_ray: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stop Ray, bring late reports home, last sync, the node's record; then the node folder goes, if all
        was copied.
        """
        with self._journal.phase("stop_ray"):
            await self.survived(stop_ray(), budget.share("stop_ray"), "stop_ray")
        await self.reap(budget)
        clean = await self.last_sync(budget.share("last_sync"))
        seconds = budget.share("node_record")
        record = await self.survived(
            in_background(self._write_record, clean, seconds=seconds), seconds, "node record"
        )
        place = self._place
        if record is not None and record["cleared"]:
            if not record["clean"]:
                self._journal.say(
                    f"node {place.node}: raw captures that could not be imported are in"
                    f" nodes/{place.node}/tmp of the run folder; rlprof harvest tries them again"
                )
            seconds = max(_LEAST_CLEAR_SECONDS, budget.share("clear"))
            await self.survived(in_background(self._sequence.clear, seconds=seconds), seconds, "clear")
        else:
            self._journal.say(
                f"node {place.node}: files that could not be copied stay in {place.folder.path}; when the"
                f" storage takes them again, on node {place.node}:"
                f" {salvage.command_line(place, self._settings['RLPROF_NODE_ROOT'])}"
            )

    async def reap(self, budget: Budget) -> None:
        """End what is left of the job on this node, once Ray has been told to stop."""
        for step in self._sequence.after_ray_stopped(self._spared):
            await self._run(step, budget)

    async def end_what_is_left(self) -> None:
        """After the drain: end what a command that was killed has left, such as nsys's importer."""
        end = in_background(
            self._sequence.end_what_is_left, _END_SECONDS / 2, self._spared(), seconds=_END_SECONDS
        )
        await self.survived(end, _END_SECONDS, "ending what is left")

    def _spared(self) -> Iterable[int]:
        """Pids that the reaper leaves alone: the supervisor, its sync, and what else it has started."""
        return (os.getpid(), os.getppid(), *self._spare, *([self.sync.pid] if self.sync else []))

    async def _run(self, step: Step, budget: Budget) -> steps.Phase | None:
        """Run one step of the drain in a thread; a fault or a time-out is said and the drain goes on.

        Its share holds the time in which it says that it was too short.
        """
        seconds, most_s = budget.share(step.name), budget.most(step.name)
        with self._journal.phase(step.name):
            call = in_background(step.run, _less_saying(seconds), _less_saying(most_s), seconds=most_s)
            return await self.survived(call, most_s, step.name)

    async def survived(self, call: Coroutine[Any, Any, _Result], seconds: float, name: str) -> _Result | None:
        """What `call` gives; None, and a word in the log, when it fails or takes longer than `seconds`."""
        node = self._place.node
        try:
            return await asyncio.wait_for(call, seconds)
        except (asyncio.TimeoutError, TimeoutError):
            self._journal.say(f"node {node}: {name} not done within {limit(seconds)}; going on")
        except Exception as error:  # nothing here may keep the rest of the drain from happening
            self._journal.say(f"node {node}: {name} failed: {type(error).__name__}: {error}; going on")
        return None

    async def last_sync(self, seconds: float) -> bool:
        """The sync's last pass, once more when that process has died. True when everything came over.

        Slurm tells every process of a cancelled step to end: such a sync has made a last pass of its own,
        before the profilers were done, and that one does not count.
        """
        if self._sync_watch is not None:
            self._sync_watch.cancel()
        ordered_ns, until = time.time_ns(), time.monotonic() + seconds
        # So that it can still say what stays, and be killed within the share.
        kill_s = min(_KILLED_SECONDS, seconds * _SAY_PART)
        write_deadline(self._place.folder.path, _less_saying(seconds - kill_s))
        with self._journal.phase("last_sync"):
            if self.sync is not None and self.sync.returncode is None:
                self.sync.terminate()  # its order to make the last pass
            else:
                await self.start_sync("--last")
            code = await self._sync_ends(until - time.monotonic() - kill_s, kill_s)
            died = code not in (0, EXIT_FAILED)
            if code is not None and (died or not self._passed_since(ordered_ns)):
                why = (
                    f"sync ended with {code}"
                    if died
                    else "Slurm told the sync to end before the profilers were done"
                )
                self._journal.say(f"node {self._place.node}: {why}; one more last pass")
                await self.start_sync("--last")
                code = await self._sync_ends(until - time.monotonic() - kill_s, kill_s)
        return code == 0

    def _passed_since(self, ordered_ns: int) -> bool:
        """Whether the sync's latest pass is a last one that began at that time or later."""
        report = read_report(self._place.folder.path)
        return report is not None and report.last and report.started_ns >= ordered_ns

    async def _sync_ends(self, seconds: float, kill_s: float) -> int | None:
        """The exit code of the sync: 0 all copied, 1 something not. None when it had to be killed after
        `seconds`, whose end is waited for `kill_s`: in a dead file system it may never come.
        """
        assert self.sync is not None
        seconds = max(_LEAST_SYNC_SECONDS, seconds)
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(self.sync.wait(), seconds)
        with contextlib.suppress(ProcessLookupError):
            self.sync.kill()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.sync.wait(), kill_s)
        self._journal.say(f"node {self._place.node}: the last sync was not done within {limit(seconds)}")
        return None

    def _write_record(self, clean: bool) -> dict[str, Any]:
        place = self._place
        facts = {
            "role": "head" if place.is_head else "worker",
            "job": place.job,
            "started_ns": self.started_ns,
            "ended_ns": time.time_ns(),
            "plugin_loaded": self.plugin_loaded or place.folder.plugin_marker.exists(),
            "clean": clean,
            "clock": self.clock,
            "phases_s": self._journal.phases_s,
        }
        return self._sequence.write_record(facts)
