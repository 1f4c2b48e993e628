"""The end of a job, from top to bottom: the head stops all nodes, each node stops itself, and what the
storage takes is explained. Each step is bounded, said, and survived where it fails; where the supervisor
dies, the next one begins it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlprof_ops import env_names
from rlprof_ops.collect.drain.drain_steps import DrainOutcome
from rlprof_ops.collect.drain.sequence import Budget, DrainSequence, DrainStep
from rlprof_ops.host import foreign
from rlprof_ops.host.background import in_background
from rlprof_ops.job import folders
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.harvest_job import harvest_words
from rlprof_ops.job.knobs import Settings
from rlprof_ops.recorder.head_recorder import FOLDER as RECORDER
from rlprof_ops.recorder.head_recorder import SUMMARY
from rlprof_ops.slurm.job_over import ends_at, is_cancelled
from rlprof_ops.supervisor import salvage
from rlprof_ops.supervisor.control_channel import Drain, Drained, Ending, ProfilersDone, StopRay
from rlprof_ops.supervisor.driver import Driver
from rlprof_ops.supervisor.node.helper_processes import less_saying
from rlprof_ops.supervisor.node.node import Node
from rlprof_ops.supervisor.node.node_state import FOLDER, End
from rlprof_ops.window.output_dir import folder_of
from rlprof_ops.words import duration, limit

if TYPE_CHECKING:
    from rlprof_ops.supervisor.head import Head
    from rlprof_ops.supervisor.worker import Worker

_LEAST_SECONDS, _MARGIN_SECONDS = 4.0, 3.0  # of a drain; between its end and Slurm's SIGKILL
_LATE_NODES_SECONDS = 15.0
_TIME_LIMIT_MARGIN_SECONDS = 5.0
_MOST_SECONDS = 3600.0
_ASK_SECONDS = 3.0  # for one question to Slurm
_ORDER_SECONDS = 1.0  # until a node hears from the head what it was told itself
_END_SECONDS, _CLOSE_SECONDS, _LEAST_CLEAR_SECONDS = 5.0, 2.0, 1.0
_LEAST_COMMAND_SECONDS = 1.0  # a command needs as much to begin
_STORAGE_SECONDS = 20.0  # for one look into the run folder
_LOOK_SECONDS = 10.0  # for one look at it
_MOST_BYTES = 64 << 20  # of a summary
_REPORT_NEEDS = ("msgspec", "numpy", "pyarrow", "rich", "jinja2")
_Result = TypeVar("_Result")


# ---- the job


async def stop_job(head: Head, end: End) -> None:
    """The ordered end on all nodes: windows and profilers everywhere, then the driver, then Ray, then the
    last sync; then manifest and report.
    """
    node, stop = head.node, NodeStop(head.node)
    kill_at = await _drain_job(head, end, stop)
    # Else ray.sub submits a job for both, but for a start that failed: there is little to read, and a
    # person waits.
    if node.settings["RLPROF_HARVEST_JOB"] != "1" or end.cause is EndCause.STARTUP_FAILED:
        closing = ClosingCommands(stop, node.environment())
        if await closing.storage_answers():
            await closing.harvest(await stop.seconds_to_close(kill_at))
            await closing.report(await stop.seconds_to_close(kill_at))


async def _drain_job(head: Head, end: End, stop: NodeStop) -> float | None:
    """Drain all nodes. When Slurm kills what is left (monotonic), if it ends the job."""
    node, kill_at = head.node, None
    head.run_record.ending(end.cause)
    began, spent = time.monotonic(), max(0.0, time.time() - end.began)
    seconds = float(node.settings.number("RLPROF_DRAIN_SECONDS"))
    cancelled_s = cancelled_seconds(node.settings)
    if end.cause is EndCause.SIGNAL and cancelled_s < seconds and await stop.is_cancelled():
        kill_at = began + cancelled_s - spent + _MARGIN_SECONDS
        most_s = seconds = max(_LEAST_SECONDS, kill_at - _MARGIN_SECONDS - time.monotonic())
        node.journal.note(f"the job is being cancelled: {limit(seconds)} are left")
    else:
        most_s = max(seconds, await stop.seconds_to_close(None))
    if end.cause is EndCause.STARTUP_FAILED:  # a node that joins later would wait for us in vain
        await head.others.join(len(node.place.nodes) - 1, _LATE_NODES_SECONDS)
    budget = Budget(seconds, most_s)
    await head.order(Drain(seconds, str(end.cause), most_s))
    await stop.close_profilers(budget)
    with node.journal.phase("other_nodes"):
        await head.others.reach((ProfilersDone, Drained), budget.most("other_nodes"))
    if (driver := head.driver or Driver.find(node.state)) is not None and not driver.process.gone.is_set():
        with node.journal.phase("end_driver"):
            grace_s = float(node.settings.number("RLPROF_DRIVER_GRACE_SECONDS"))
            await driver.end(min(grace_s, budget.share("end_driver")))
    await head.order(StopRay())
    # They have the same budget; their last word takes a moment.
    margin_s = _MARGIN_SECONDS / 2 if kill_at is not None else _TIME_LIMIT_MARGIN_SECONDS
    others = asyncio.create_task(head.others.reach((Drained,), budget.left() + margin_s))
    await stop.finish(budget)
    await others
    await head.control.close()
    node.cancel_background()
    await head.state_file.write()
    if head.clock_server is not None:
        await stop.in_time(_CLOSE_SECONDS, "clock server", head.clock_server.close)
    head.run_record.ended(node.journal.phases_s, time.monotonic() - began)
    node.journal.note(f"drained in {duration((time.monotonic() - began) * 1e9)}")
    return kill_at


def seconds_of_job(wanted_s: float = _MOST_SECONDS, env: Mapping[str, str] = os.environ) -> float:
    """Seconds until Slurm ends the job at its time limit, `wanted_s` at most; as many where it has no limit
    that we know of.

    Its environment may have the limit of its start, which a suspension or `scontrol update` moves: where that
    leaves too little, Slurm is asked, for `_ASK_SECONDS` at most.
    """
    end = env.get("SLURM_JOB_END_TIME", "")
    left = float(end) - time.time() if end.isdigit() else wanted_s
    if left < wanted_s:
        now = ends_at(env.get("SLURM_JOB_ID", ""), _ASK_SECONDS)
        if now is not None:
            left = now - time.time()
        elif left <= 0:  # and we run
            left = wanted_s
    return min(max(0.0, left), wanted_s)


def cancelled_seconds(settings: Settings, env: Mapping[str, str] = os.environ) -> float:
    """Seconds for the whole drain of a job that Slurm is ending: it kills what is left after KillWait
    (scripts/lib/job.sh).
    """
    seconds = float(settings.number("RLPROF_DRAIN_SECONDS"))
    wait = env.get(env_names.KILL_WAIT, "")
    return min(seconds, max(_LEAST_SECONDS, float(wait) - _MARGIN_SECONDS)) if wait.isdigit() else seconds


# ---- a node that is not the head


async def stop_worker(worker: Worker, end: End) -> None:
    """The end of one node, at the head's order or of its own accord; the head hears how far it is."""
    node, stop = worker.node, NodeStop(worker.node)
    await worker.send(Ending(str(end.cause)))
    seconds, most_s = float(node.settings.number("RLPROF_DRAIN_SECONDS")), None
    if end.cause is EndCause.SIGNAL:  # the head gets it too, and finds out how much time there is
        await asyncio.wait({worker.drain_order}, timeout=_ORDER_SECONDS)
        seconds = cancelled_seconds(node.settings)
    if worker.drain_order.done():
        seconds, most_s = worker.drain_order.result().seconds, worker.drain_order.result().most_s
    node.journal.note(f"ending: {end.cause}")
    budget = Budget(seconds, most_s)
    await stop.close_profilers(budget)
    await worker.send(ProfilersDone(node.journal.phases_s))
    if end.cause is EndCause.ORDERED:  # the others' windows must be closed too before any Ray goes
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(worker.may_stop.wait(), budget.most("other_nodes"))
    await worker.probe_clock("end")
    await stop.finish(budget)
    node.cancel_background()
    await worker.send(Drained(node.journal.phases_s))


# ---- any node


class NodeStop:
    """The end of one node, in two halves: everything that Ray has to live for, and the rest. Nothing is left
    to do where a supervisor before has come to the node's record.
    """

    def __init__(self, node: Node) -> None:
        self.node, place = node, node.place
        self._sequence = DrainSequence(
            place.folder.path,
            place.run.path,
            place.node,
            place.job,
            sessions=node.may_profile(),
            output_dir=folder_of(node.request, node.cwd),
            say=node.journal.note,
        )

    async def close_profilers(self, budget: Budget) -> None:
        """No new window, the open ones are closed, and profilers get their time."""
        node = self.node
        if node.state.drained:
            return
        node.sync.stop_restarting()
        if node.distiller is not None:
            node.helpers.dismiss(node.distiller)
        if node.log_follower is not None:
            end = node.log_follower.end()
            await self.survived(end, budget.share("close_windows") / 2, "the last steps")
        if node.windows is not None:
            seconds = budget.share("close_windows") / 2
            await self.survived(node.windows.close(), seconds, "closing windows")
        for step in self._sequence.before_ray_stops():
            await self._run(step, budget)

    async def finish(self, budget: Budget) -> None:
        """Stop Ray, bring late reports home, last sync, the node's record; then the node folder goes, if all
        was copied.
        """
        node, place = self.node, self.node.place
        if not node.state.drained:
            with node.journal.phase("stop_ray"):
                await self.survived(self._stop_ray(), budget.share("stop_ray"), "stop_ray")
            for step in self._sequence.after_ray_stopped(self._spared):
                await self._run(step, budget)
            clean = await node.sync.last_pass(budget.share("last_sync"))
            if not await self._record(clean, budget):
                node.journal.say(
                    f"node {place.node}: files that could not be copied stay in {place.folder.path}; when the"
                    f" storage takes them again, on node {place.node}:"
                    f" {salvage.command_line(place, node.settings['RLPROF_NODE_ROOT'])}"
                )
                return
            node.state.drained = True  # what the record tells of is about to go
            node.state.save()
        seconds = max(_LEAST_CLEAR_SECONDS, budget.share("clear"))
        await self.in_time(seconds, "clear", self._sequence.clear, (FOLDER, *folders.MARKS))

    async def _record(self, clean: bool, budget: Budget) -> bool:
        """Write the node's record; whether the node folder may go."""
        place = self.node.place
        record = await self.in_time(budget.share("node_record"), "node record", self._write_record, clean)
        if record is None or not record["cleared"]:
            return False
        if not record["clean"]:
            self.node.journal.say(
                f"node {place.node}: raw captures that could not be imported are in"
                f" nodes/{place.node}/tmp of the run folder; rlprof harvest tries them again"
            )
        return True

    async def _stop_ray(self) -> None:
        """The recorder keeps its last rows, then this node's Ray goes."""
        node = self.node
        if node.recording is not None:
            await node.recording.end()
        await node.ray.stop()
        if node.relay is not None:
            node.relay.close()

    def _write_record(self, clean: bool) -> dict[str, Any]:
        node, place = self.node, self.node.place
        facts = {
            "role": "head" if place.is_head else "worker",
            "job": place.job,
            "started_ns": node.state.started_ns,
            "ended_ns": time.time_ns(),
            "plugin_loaded": place.folder.plugin_marker.exists(),
            "clean": clean,
            "clock": node.clock,
            "phases_s": node.journal.phases_s,
        }
        return self._sequence.write_record(facts)

    async def end_what_is_left(self) -> None:
        """After the drain: end what a command that was killed has left, such as nsys's importer."""
        end = self._sequence.end_what_is_left
        await self.in_time(_END_SECONDS, "ending what is left", end, _END_SECONDS / 2, self._spared())

    def _spared(self) -> list[int]:
        """Pids that the reaper leaves alone: the supervisor, its keeper, and its helpers."""
        return [os.getpid(), os.getppid(), *self.node.helpers.pids]

    async def is_cancelled(self) -> bool:
        """Whether Slurm is ending the job, and kills it after KillWait. Where it does not answer: better too
        short a drain than one that is cut off.
        """
        found = await self.in_time(_ASK_SECONDS, "asking Slurm", is_cancelled, self.node.place.job)
        return found is not False

    async def seconds_to_close(self, kill_at: float | None) -> float:
        """What Slurm leaves for all that is still to do; `kill_at` (monotonic) where it is ending the job."""
        if kill_at is not None:
            return kill_at - time.monotonic() - _MARGIN_SECONDS / 2
        left_s = await self.in_time(_ASK_SECONDS + 1, "asking Slurm", seconds_of_job)
        return (_MOST_SECONDS if left_s is None else left_s) - _TIME_LIMIT_MARGIN_SECONDS

    async def _run(self, step: DrainStep, budget: Budget) -> DrainOutcome | None:
        """Run one step of the drain in a thread; a fault or a time-out is said and the drain goes on.

        Its share holds the time in which it says that it was too short.
        """
        seconds, most_s = budget.share(step.name), budget.most(step.name)
        with self.node.journal.phase(step.name):
            return await self.in_time(most_s, step.name, step.run, less_saying(seconds), less_saying(most_s))

    async def survived(self, call: Coroutine[Any, Any, _Result], seconds: float, name: str) -> _Result | None:
        """What `call` gives; None, and a word in the log, when it fails or takes longer than `seconds`."""
        node = self.node.place.node
        try:
            return await asyncio.wait_for(call, seconds)
        except (asyncio.TimeoutError, TimeoutError):
            self.node.journal.say(f"node {node}: {name} not done within {limit(seconds)}; going on")
        except Exception as error:  # nothing here may keep the rest of the drain from happening
            self.node.journal.say(f"node {node}: {name} failed: {type(error).__name__}: {error}; going on")
        return None

    async def in_time(
        self, seconds: float, name: str, work: Callable[..., _Result], *arguments: Any
    ) -> _Result | None:
        """The same of `work` in a thread, which storage that hangs may keep."""
        return await self.survived(in_background(work, *arguments, seconds=seconds), seconds, name)


# ---- manifest and report


class ClosingCommands:
    """Our own commands at a job's end, in processes of their own: the end must not hang on them."""

    def __init__(self, stop: NodeStop, environment: Mapping[str, str]) -> None:
        self._stop, self._environment = stop, environment
        self._settings, self._journal = stop.node.settings, stop.node.journal
        self._run, self._pinned = stop.node.place.run.path, stop.node.place.pinned_run()

    async def storage_answers(self) -> bool:
        """Whether there is any use in reading the run folder: what hangs there cannot even be killed, and in
        another folder under its name nothing is ours.
        """
        answer = await self._stop.in_time(_LOOK_SECONDS, f"looking at {self._run}", self._look)
        if answer is None:
            self._journal.say(
                f"{self._run} does not answer as this job's own: no harvest and no report; when it does, run"
                f" scripts/harvest.sh {self._run}"
            )
        return answer is not None

    def _look(self) -> bool:
        with contextlib.suppress(FileNotFoundError):  # which the commands themselves will say
            self._pinned.open().close()
        return True

    async def harvest(self, left_s: float) -> None:
        """Make the manifest, within its knob and what Slurm leaves."""
        await self.within("harvest", "RLPROF_HARVEST_SECONDS", f"scripts/harvest.sh {self._run}", left_s)

    async def report(self, left_s: float) -> None:
        """Explain the run where this node can; anyone can make the report later, anywhere."""
        if not all(importlib.util.find_spec(name) for name in _REPORT_NEEDS):
            return
        if await self._stop.in_time(_STORAGE_SECONDS, "looking for reports", has_something, self._run):
            await self.within("report", "RLPROF_REPORT_SECONDS", f"rlprof report {self._run}", left_s)

    async def within(self, command: str, knob: str, later: str, left_s: float) -> None:
        """Run one command on the run folder for at most the knob's seconds, and `left_s`; `later` is what to
        run by hand then.
        """
        seconds = min(float(self._settings.number(knob)), left_s)
        if not self._settings.number(knob):
            return
        if seconds < _LEAST_COMMAND_SECONDS:
            self._journal.say(f"no time is left for the {command}; run {later}")
            return
        words = harvest_words(self._run, seconds) if command == "harvest" else (command, str(self._run))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rlprof_ops", *words),
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
        )
        try:
            code = await asyncio.wait_for(process.wait(), seconds)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await self._stop.end_what_is_left()
            self._journal.say(f"{command} not done within {limit(seconds)}; run {later}")
            return
        if code < 0:
            self._journal.say(f"{command} ended with {code}; run {later}")


def has_something(run: Path) -> bool:
    """Whether there are reports of captures, or steps that the recorder has seen. harvest.sh looks for the
    same.
    """
    if any((run / "profiles").glob("*/*/*/*")):
        return True
    summary = foreign.read_object(run / RECORDER / SUMMARY, _MOST_BYTES)
    return bool(foreign.an_object(summary.get("history")).get("steps"))
