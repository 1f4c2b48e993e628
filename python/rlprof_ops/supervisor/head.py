"""The supervisor of the head node: Ray's head, readiness, the driver, and the ordered end of the whole
job.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.collect import job_state
from rlprof_ops.collect.drain.sequence import Budget
from rlprof_ops.errors import RlprofError
from rlprof_ops.host.background import in_background
from rlprof_ops.host.clock_probe import ClockServer
from rlprof_ops.job.end_cause import SIGNAL_EXIT, EndCause
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.request import ProfileRequest
from rlprof_ops.slurm.job_state import is_cancelled
from rlprof_ops.supervisor import attach_file, capture_relay, ended_tasks
from rlprof_ops.supervisor.base import GROUP_CLEANUP, Supervisor
from rlprof_ops.supervisor.beside.recording import Recorded
from rlprof_ops.supervisor.control_channel import (
    Drain,
    Drained,
    Failed,
    Joined,
    Lost,
    Message,
    ProfilersDone,
    RayUp,
    StopRay,
)
from rlprof_ops.supervisor.control_channel import Head as ControlHead
from rlprof_ops.supervisor.driver import Driver, session_words
from rlprof_ops.supervisor.gcs.gcs_watcher import GcsWatcher, watch_resources
from rlprof_ops.supervisor.node_drain import Journal
from rlprof_ops.supervisor.ray_process import no_authentication, ray_version
from rlprof_ops.supervisor.run_record import RunRecord
from rlprof_ops.supervisor.steps.state_relay import StateFile, StateTold
from rlprof_ops.supervisor.steps.step_relay import KINDS as STEP_KINDS
from rlprof_ops.supervisor.takeover.handover import REJOIN_SECONDS, Adopted, Handover, place_of
from rlprof_ops.supervisor.takeover.reins import Reins
from rlprof_ops.supervisor.whole_job import exit_code
from rlprof_ops.supervisor.whole_job.closing_commands import ClosingCommands
from rlprof_ops.supervisor.whole_job.joining import Joining
from rlprof_ops.supervisor.whole_job.other_nodes import OtherNodes
from rlprof_ops.words import duration, limit

_OF_COLLECTIVES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")  # reported, never changed
_LATE_NODES_SECONDS = 15.0
_LATE_SIGNAL_SECONDS = 1.0
_STORAGE_SECONDS = 20.0  # for one call to storage or to Slurm
_MARGIN_SECONDS = 5.0
_CANCEL_MARGIN_SECONDS = 3.0  # as NodeDrain keeps of KillWait
_ASK_SECONDS = 3.0
_CLOSE_SECONDS = 2.0
_MOST_DRAIN_SECONDS = 3600.0


def _slurm_time_left_s(env: Mapping[str, str]) -> float:
    """Seconds until Slurm ends the job at its time limit; an hour where it has none that we know of."""
    end = env.get("SLURM_JOB_END_TIME", "")
    left = float(end) - time.time() if end.isdigit() else _MOST_DRAIN_SECONDS
    return min(max(0.0, left), _MOST_DRAIN_SECONDS)


class Head(Supervisor):
    """The first node of the job."""

    def __init__(
        self,
        settings: Settings,
        request: ProfileRequest,
        place: NodeContext,
        journal: Journal,
        reins: Reins | None = None,
    ) -> None:
        super().__init__(settings, request, place, journal, reins)
        self._nodes = OtherNodes(journal)
        self.joining = Joining(place, settings, journal, self._nodes)
        self._driver: Driver | None = None
        self._clock_server: ClockServer | None = None
        self._kill_at: float | None = None  # monotonic, of a job that is being cancelled
        self._visits: list[asyncio.Task[None]] = []
        self._had: tuple[str, ...] = ()  # nodes that served under a supervisor before
        self._orders: list[Message] = []  # to all nodes, and to those that join again
        self.run_record = RunRecord.of(place, settings, request, self.files.started_ns, journal.writer)
        self.control = ControlHead(place.token, self._on_message, self._visited)
        self.state = StateFile(
            place.run.path / job_state.NAME,
            journal.writer,
            request,
            f"{place.head_ip}:{place.control_port}",
            lambda: self.relay.step if self.relay is not None else 0,
        )

    async def run(self) -> int:
        """The job's exit code: the driver's, or what ended the job before the driver did."""
        self.listen_to_signals()
        before = self.reins.before
        if not before:
            self.run_record.save()
        told = (f"{name}={os.environ[name]}" for name in _OF_COLLECTIVES if os.environ.get(name))
        self.journal.note(
            f"nodes reach the head at {self.place.head_ip}; {', '.join(told) or 'NCCL chooses'}"
        )
        plugin: asyncio.Task[None] | None = None
        try:
            await (self._take_over() if before else self._start())
            plugin = asyncio.create_task(self.watch_plugin())
            cause, code = await self._serve()
        except RlprofError as error:
            self.journal.say(str(error))
            cause, code = exit_code.of_bad_takeover() if before else exit_code.of_bad_start(error)
            self.run_record.detail = str(error)
        finally:
            if plugin is not None:
                plugin.cancel()
        await self._drain(cause)
        closing = ClosingCommands(
            self.settings, self.journal, self.place.run.path, self.environment(), self.files
        )
        # Else ray.sub submits a job for both, but for a start that failed: there is little to read, and a
        # person waits.
        in_place = self.settings["RLPROF_HARVEST_JOB"] != "1" or cause is EndCause.STARTUP_FAILED
        if in_place and await closing.storage_answers():
            await closing.harvest(self._closing_seconds())
            await closing.report(self._closing_seconds())
        return code

    # ---- start
    # -------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        place = self.place
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.number("RLPROF_READY_SECONDS")
        assert self.shutdown_requested is not None
        await self._listen()
        self._check_authentication()
        self._say_what_is_off()
        await self.run_setup()
        ended = asyncio.create_task(ended_tasks.watch(place.run.control, self._task_ended))
        asking = GcsWatcher(
            f"{place.head_ip}:{place.gcs_port}", self.environment(), self.helpers, self.journal.say
        )
        await asking.start()
        try:
            await self._begin_beside()
            await self.joining.race(self.start_ray(deadline), self.shutdown_requested)
            with self.journal.phase("nodes_join"):
                joined = self.joining.all_joined(asking, deadline, self.state.up)
                await self.joining.race(joined, self.shutdown_requested)
        finally:
            ended.cancel()
            await asking.stop()

    async def _listen(self) -> None:
        """Be there for the other nodes. Raises RlprofError where the port is taken."""
        place = self.place
        try:
            await self.control.listen(place.ip, place.control_port)
            self._clock_server = ClockServer(place.ip, place.token.encode(), place.control_port)
        except OSError as error:
            raise RlprofError(
                f"RLPROF_CONTROL_PORT: node {place.node} cannot listen on {place.ip}:{place.control_port}:"
                f" {error}"
            ) from error

    async def _begin_beside(self) -> None:
        """Everything that goes on beside Ray and the driver; the steps first, which may be going on."""
        await self.serve_steps(self.control.tell, self._nodes.serving)
        await self.end_old_helpers()
        await self.files.start_sync()
        self.tell_state(self._hear_state)
        self.background(self.state.keep())
        if self.settings[env_names.ON_DEMAND] != "0":
            self.on_demand = asyncio.create_task(capture_relay.watch(self.place.run.path, self._demanded))
        self.start_recording(self._recorded)
        await self.start_distilling()

    async def _take_over(self) -> None:
        """Go on with Ray and the driver of a supervisor that was killed; the other nodes join again."""
        recalled = in_background(self.run_record.recall, seconds=_STORAGE_SECONDS)
        await self.files.survived(recalled, _STORAGE_SECONDS + 1, "the job's record so far")
        left = await self.find_what_is_left()
        self._had = left.nodes
        if left.driver is not None:
            self._driver = Driver(Adopted(left.driver, self.reins))
        self.run_record.taken_over(self.place.node, self.reins.before)
        await self._listen()
        await self._begin_beside()
        self.state.up(left.nodes_up or 0)
        self.background(self._miss(left.nodes))

    async def _miss(self, nodes: tuple[str, ...]) -> None:
        """Say which of `nodes` have not come back to this supervisor."""
        await asyncio.sleep(REJOIN_SECONDS)
        for node in nodes:
            if not self._nodes.have_said(node, Joined, RayUp):
                self.journal.say(f"node {node} is lost: it did not join the new supervisor of the head")
                self.run_record.lost(node)

    def _leave_handover(self) -> None:
        assert self.ray is not None
        self.hand_over(
            Handover(
                place_of(self.ray.process.pid),
                place_of(self._driver.process.pid) if self._driver is not None else None,
                self.files.started_ns,
                tuple(sorted({*self._had, *self._nodes.serving()})),
                self.state.nodes_up,
                self.journal.phases_s,
            )
        )

    def _task_ended(self, node: str, how: str) -> None:
        """A task of another node has ended while the cluster starts: its own message, if there is one, says
        more.
        """
        if node in self.place.nodes[1:] and not self._nodes.have_said(node, Failed, Drained):
            self._on_message(node, Failed(f"node {node}: its task ended before the cluster was up: {how}"))

    def _check_authentication(self) -> None:
        """Say so when this Ray lets everybody in who reaches its ports. Raises RlprofError where the job
        wants authentication.
        """
        problem = no_authentication(ray_version())
        if problem and self.settings["RAY_AUTH_MODE"] == "token":
            if self.settings.flag("RLPROF_REQUIRE_RAY_AUTH"):
                raise RlprofError(f"RLPROF_REQUIRE_RAY_AUTH=1: {problem}")
            self.journal.say(f"{problem}; RLPROF_REQUIRE_RAY_AUTH=1 refuses it")

    def _say_what_is_off(self) -> None:
        """Say so when the job's environment asks Ray for what would cost reports."""
        wanted = os.environ.get(GROUP_CLEANUP, "").strip().lower()
        if self._asked() and wanted not in ("", "0", "false"):
            self.journal.say(
                f"{GROUP_CLEANUP}={wanted} is off in this job: Ray would kill nsys with its worker, while"
                " nsys writes the worker's report"
            )

    async def _demanded(self, asked: capture_relay.CaptureAsked) -> None:
        """Something is asked while the job runs: every node hears it, this one too."""
        await self.control.tell(asked)
        await self.take_demand(asked)

    async def _recorded(self, told: dict[str, Any]) -> None:
        """The recorder has found something, or wants a capture of it."""
        if isinstance(finding := told.get("finding"), dict):
            self.journal.say(f"found: {finding.get('text')}")
            self.state.found(str(finding.get("text")))
        elif isinstance(problem := told.get("problem"), str):
            self.journal.note(f"recorder: {problem}")
        elif isinstance(asked := told.get("capture"), str):
            await self._demanded(capture_relay.CaptureAsked(asked))

    async def _visited(self, asked: Message) -> bool:
        """Somebody with the job's token asks for something."""
        if self.on_demand is None or not isinstance(asked, capture_relay.CaptureAsked):
            return False
        self._visits.append(asyncio.create_task(self._demanded(asked)))
        return True

    async def _hear_state(self, message: StateTold) -> None:
        self.state.hear(self.place.node, message)

    def take_request(self, request: ProfileRequest) -> None:
        super().take_request(request)
        self.run_record.take_request(request)
        self.state.take_request(request)

    def _on_message(self, node: str, message: Message) -> None:
        if self.relay is not None and isinstance(message, (*STEP_KINDS, Lost)):
            self.relay.hear(node, message)
        if self.recording is not None and isinstance(message, Recorded):
            self.recording.hear(message.news)
            return
        if isinstance(message, StateTold):
            self.state.hear(node, message)
            return
        self._nodes.hear(node, message)
        if isinstance(message, Joined):
            self._joined(node, message)
        if isinstance(message, Lost) and self._nodes.have_said(node, Lost) and self._driver is not None:
            self.journal.say(f"node {node} is lost: its supervisor's link broke")
            self.run_record.lost(node)

    def _joined(self, node: str, message: Joined) -> None:
        if message.before:
            self.run_record.taken_over(node, message.before)
        if node in self.run_record.lost_nodes:
            self.journal.say(f"node {node} is back: its supervisor has joined again")
            self.run_record.back(node)
        for order in self._orders:  # who has heard it already takes it as said
            self._visits.append(asyncio.create_task(self.control.tell(order)))

    async def _order(self, message: Message) -> None:
        self._orders.append(message)
        await self.control.tell(message)

    # ---- the driver
    # --------------------------------------------------------------------------------------------

    async def _serve(self) -> tuple[EndCause, int]:
        """Run the driver, or wait for the end of an interactive cluster. Gives the cause of the end and
        the exit code.
        """
        assert self.shutdown_requested is not None
        assert self.ray is not None
        place = self.place
        write_attach = in_background(attach_file.write, place, self.environment(), seconds=_STORAGE_SECONDS)
        await self.files.survived(write_attach, _STORAGE_SECONDS + 1, "attach file")
        command = self.settings["COMMAND"]
        waiting: dict[str, asyncio.Future[Any]] = {
            "told": asyncio.shield(self.shutdown_requested),
            "ray": asyncio.ensure_future(self.ray.gone.wait()),
        }
        if self._driver is not None:  # of the supervisor before
            waiting["driver"] = asyncio.ensure_future(self._driver.wait())
        elif command:
            cwd = Path(self.settings_cwd())
            log = place.folder.live / "driver.log"
            adapters = self.settings.flag(env_names.ADAPTERS)
            self._driver = await Driver.start(
                command,
                place.folder.path / "command.sh",
                log,
                self.environment() | {env_names.LEADS: "1"},
                cwd,
                session_words(self.request, sys.executable) if adapters else (),
                self.reins,
            )
            self.run_record.driver_started()
            self.journal.say(f"the driver runs; its output: {place.run.logs / log.name}")
            waiting["driver"] = asyncio.ensure_future(self._driver.wait())
        else:
            self.journal.say(f"no COMMAND: the cluster waits. Attach with: {attach_file.command_line(place)}")
        self._leave_handover()
        address = f"{place.head_ip}:{place.gcs_port}"
        resources = asyncio.create_task(
            watch_resources(address, self.environment(), self.helpers, self._note_waiting)
        )
        try:
            await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            resources.cancel()
        if (
            "driver" in waiting
            and waiting["driver"].done()
            and waiting["driver"].result() in SIGNAL_EXIT.values()
        ):
            # Slurm may signal the driver and us at once, and the driver can be the faster one to end.
            await asyncio.wait({waiting["told"]}, timeout=_LATE_SIGNAL_SECONDS)
        return self._cause(waiting)

    def _note_waiting(self, text: str) -> None:
        self.journal.say(f"the driver waits: {text}" if text else "what the driver waited for is there")
        self.run_record.waits(text)

    def _cause(self, waiting: dict[str, asyncio.Future[Any]]) -> tuple[EndCause, int]:
        driver = waiting["driver"].result() if "driver" in waiting and waiting["driver"].done() else None
        told = waiting["told"].result() if waiting["told"].done() else None
        cause, code = exit_code.of_job(told, driver, self._driver is not None)
        if driver is not None:
            self.run_record.driver_ended(driver)
        if cause is EndCause.DRIVER_EXIT:
            self.journal.say(f"the driver ended with exit code {driver}")
        elif told is not None:
            self.journal.say(
                f"told to end: {cause}{'; the driver ended with it' if driver is not None else ''}"
            )
        else:
            assert self.ray is not None
            self.journal.say(f"Ray's head ended by itself; its last words:\n{self.ray.tail(5)}")
            self.run_record.detail = "Ray's head ended by itself"
        return cause, code

    def settings_cwd(self) -> str:
        """The driver's folder: where sbatch was called from."""
        return os.environ.get("SLURM_SUBMIT_DIR") or str(self.cwd)

    # ---- the end
    # -----------------------------------------------------------------------------------------------

    async def _drain(self, cause: EndCause) -> None:
        """The ordered end on all nodes: windows and profilers everywhere, then the driver, then Ray, then
        the last sync.
        """
        self.reins.ends()
        self.run_record.ending(cause)
        began = time.monotonic()
        seconds = float(self.settings.number("RLPROF_DRAIN_SECONDS"))
        most_s = max(seconds, _slurm_time_left_s(os.environ) - _MARGIN_SECONDS)
        if (
            cause is EndCause.SIGNAL
            and self.files.cancelled_budget_s() < seconds
            and await self._is_cancelled()
        ):
            most_s = seconds = self.files.cancelled_budget_s() - (time.monotonic() - began)
            self._kill_at = began + self.files.cancelled_budget_s() + _CANCEL_MARGIN_SECONDS
            self.journal.note(f"the job is being cancelled: {limit(seconds)} are left")
        if cause is EndCause.STARTUP_FAILED and not (
            self.shutdown_requested and self.shutdown_requested.done()
        ):
            # a node that joins later would wait for us in vain
            await self._nodes.join(len(self.place.nodes) - 1, _LATE_NODES_SECONDS)
        budget = Budget(seconds, most_s)
        await self._order(Drain(seconds, str(cause), most_s))
        await self.close_profilers(budget)
        with self.journal.phase("other_nodes"):
            await self._nodes.reach((ProfilersDone, Drained), budget.most("other_nodes"))
        if self._driver is not None and self._driver.process.returncode is None:
            with self.journal.phase("end_driver"):
                grace_s = float(self.settings.number("RLPROF_DRIVER_GRACE_SECONDS"))
                await self._driver.end(min(grace_s, budget.share("end_driver")))
        await self._order(StopRay())
        # They have the same budget; their last word takes a moment.
        margin_s = _CANCEL_MARGIN_SECONDS / 2 if self._kill_at is not None else _MARGIN_SECONDS
        others = asyncio.create_task(self._nodes.reach((Drained,), budget.left() + margin_s))
        await self.files.finish(budget, self.stop_node)
        await others
        await self.control.close()
        self.end_background()
        await self.state.write()
        if self._clock_server is not None:
            close = in_background(self._clock_server.close, seconds=_CLOSE_SECONDS)
            await self.files.survived(close, _CLOSE_SECONDS, "clock server")
        self.run_record.ended(self.journal.phases_s, time.monotonic() - began)
        self.journal.note(f"drained in {duration((time.monotonic() - began) * 1e9)}")

    async def _is_cancelled(self) -> bool:
        """Whether Slurm is ending the job, and kills it after KillWait. Where it does not answer: better too
        short a drain than one that is cut off.
        """
        ask = in_background(is_cancelled, self.place.job, seconds=_ASK_SECONDS)
        found = await self.files.survived(ask, _ASK_SECONDS, "asking Slurm")
        return found is not False

    def _closing_seconds(self) -> float:
        """What Slurm leaves for harvest and report, once all is drained."""
        if self._kill_at is not None:
            return self._kill_at - time.monotonic() - _CANCEL_MARGIN_SECONDS / 2
        return _slurm_time_left_s(os.environ) - _MARGIN_SECONDS
