"""The supervisor of the head node: Ray's head, readiness, the driver, and the job's end and exit code."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rlprof_ops import env_names
from rlprof_ops.collect import job_state
from rlprof_ops.errors import EXIT_FAILED, RlprofError
from rlprof_ops.extras import installed_version
from rlprof_ops.host.background import in_background
from rlprof_ops.host.clock_probe import ClockServer
from rlprof_ops.job import run_json
from rlprof_ops.job.end_cause import SIGNAL_EXIT, EndCause, why_job_ends
from rlprof_ops.job.knobs import home, read_knobs
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.recorder.detect.anomaly import HANG
from rlprof_ops.request import ProfileRequest
from rlprof_ops.supervisor import capture_relay, job_end
from rlprof_ops.supervisor.control_channel import ControlServer, Drained, Failed, Joined, Lost, Message, RayUp
from rlprof_ops.supervisor.driver import Driver, session_words, variables_of
from rlprof_ops.supervisor.node.helper_processes import Recorded
from rlprof_ops.supervisor.node.node import GROUP_CLEANUP, Node
from rlprof_ops.supervisor.node.node_state import End, ToldToEnd, first_of
from rlprof_ops.supervisor.node.ray_process import RayProcess, no_authentication
from rlprof_ops.supervisor.other_nodes import OtherNodes, watch_ended_tasks
from rlprof_ops.supervisor.run_record import RunRecord
from rlprof_ops.supervisor.steps.state_relay import StateFile, StateTold
from rlprof_ops.supervisor.steps.step_relay import StepMessage

REJOIN_SECONDS = 30.0  # in which a node finds the head's new supervisor
_OF_COLLECTIVES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")  # reported, never changed
_OF_THE_JOB = (env_names.REQUEST_JSON, env_names.WHOLE_REQUEST_JSON)
_OF_A_SHELL = {
    "RAY_ADDRESS",
    "RAY_AUTH_MODE",
    env_names.RAY_TOKEN_PATH,
    "PYTHONPATH",
    "PATH",
    "CONTAINER",
    "MOUNTS",
}
_STORAGE_SECONDS = 20.0  # for one call to storage
_Result = TypeVar("_Result")


def why_start_ends(error: RlprofError) -> tuple[EndCause, int]:
    """The same for a job whose cluster did not come up."""
    cause = error.cause if isinstance(error, ToldToEnd) else EndCause.STARTUP_FAILED
    return cause, getattr(error, "exit_code", EXIT_FAILED)


class Head:
    """The first node of the job. What it does begins with what its node's state tells: of a supervisor
    before, or nothing.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        place, journal = node.place, node.journal
        self.others = OtherNodes(journal)
        self.driver: Driver | None = None
        self.clock_server: ClockServer | None = None
        self._on_demand = node.settings[env_names.ON_DEMAND] != "0"
        self._orders: list[Message] = []  # to all nodes, and to those that join again
        self.run_record = RunRecord.of(place, node.settings, node.request, node.state, journal.writer)
        self.control = ControlServer(place.token, self.on_message, self._visited)
        self.state_file = StateFile(
            place.run.path / job_state.NAME,
            journal.writer,
            node.request,
            f"{place.head_ip}:{place.control_port}",
            lambda: node.relay.step if node.relay is not None else 0,
        )
        node.take_request = self.take_request

    async def run(self) -> int:
        """The job's exit code: the driver's, or what ended the job before the driver did."""
        node, state = self.node, self.node.state
        known = (f"{name}={os.environ[name]}" for name in _OF_COLLECTIVES if os.environ.get(name))
        node.journal.note(
            f"nodes reach the head at {node.place.head_ip}; {', '.join(known) or 'NCCL chooses'}"
        )
        if node.before:
            self.run_record.taken_over(node.place.node, node.before)
        else:
            self.run_record.save()
        try:
            await self._listen()
            await self._resume_steps()
            if state.end is None:
                await self._start()
                cause, code = await self._serve(await self._ray_up())
                state.end = End(cause, code, time.time())
            else:
                await node.end_what_was_before()
        except RlprofError as error:
            node.journal.say(str(error))
            self.run_record.detail = str(error)
            if state.end is None:
                state.end = End(*why_start_ends(error), time.time())
        finally:
            node.end_watching()
        state.save()
        await job_end.stop_job(self, state.end)
        return state.end.code

    # ---- start

    async def _listen(self) -> None:
        """Be there for the other nodes. Raises RlprofError where the port is taken."""
        place = self.node.place
        try:
            await self.control.listen(place.ip, place.control_port)
            self.clock_server = ClockServer(place.ip, place.token.encode(), place.control_port)
        except OSError as error:
            raise RlprofError(
                f"RLPROF_CONTROL_PORT: node {place.node} cannot listen on {place.ip}:{place.control_port}:"
                f" {error}"
            ) from error

    async def _start(self) -> None:
        """Everything before Ray, as far as no supervisor before has done it, and what goes on beside it and
        the driver.
        """
        node, state = self.node, self.node.state
        await node.end_what_was_before()
        if state.serving:
            self.state_file.up(state.nodes_up or 0)
        else:
            self.check_authentication()
            self.say_what_is_off()
            await self.unless_ordered(node.run_setup())
        await node.start_services(self._receive_state, self._recorded)
        node.spawn(self.state_file.keep())
        if self._on_demand:
            node.spawn_watch(capture_relay.watch(node.place.run.path, self._capture))

    async def _ray_up(self) -> RayProcess:
        """Ray, with the nodes that the job needs. Raises RlprofError."""
        node, state = self.node, self.node.state
        deadline = asyncio.get_running_loop().time() + node.settings.number("RLPROF_READY_SECONDS")
        if state.serving:
            return await node.ray.find_or_start(deadline)
        ended = asyncio.create_task(watch_ended_tasks(node.place.run.control, self.task_ended))
        try:
            ray = await self.unless_ordered(self._cluster_up(deadline))
        finally:
            ended.cancel()
        state.serving = True
        self._save_nodes()
        return ray

    async def _cluster_up(self, deadline: float) -> RayProcess:
        node, nodes = self.node, self.node.place.nodes
        plugin = asyncio.create_task(node.ray.plugin_problem())  # while Ray starts
        ray = await node.ray.find_or_start(deadline)
        with node.journal.phase("nodes_join"):
            wanted = node.settings.number("RLPROF_MIN_NODES") or len(nodes)
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self.others.be_up(wanted - 1, self._note_nodes), left_s)
            except asyncio.TimeoutError:
                raise RlprofError(
                    f"after {node.settings['RLPROF_READY_SECONDS']} s (RLPROF_READY_SECONDS)"
                    f" {self.state_file.nodes_up} of {wanted} nodes are up; {self.others.missing(nodes[1:])}"
                ) from None
            if problem := await plugin:
                raise RlprofError(problem)
        node.journal.say(f"{self.state_file.nodes_up} of {len(nodes)} nodes are up")
        return ray

    def _note_nodes(self, others: int) -> None:
        """Ray is up here and on so many other nodes."""
        if self.state_file.nodes_up != others + 1:
            self.node.journal.note(f"{others + 1} of {len(self.node.place.nodes)} nodes are up")
        self.state_file.up(others + 1)

    async def unless_ordered(self, work: Awaitable[_Result]) -> _Result:
        """What `work` gives. Raises RlprofError when a node that the job needs reports a failed start,
        ToldToEnd when an order to end comes first.
        """
        ends = [self.node.order.raise_when_given("the cluster was up")]
        if not self.node.settings.number("RLPROF_MIN_NODES"):
            ends.append(self.others.fails())
        return await first_of(work, *ends)

    async def _resume_steps(self) -> None:
        """Hear the driver's steps, and the nodes of a supervisor before: they come back to this one, or are
        lost.
        """
        node, nodes = self.node, self.node.state.nodes
        if nodes:
            self.others.expect(nodes)
            node.spawn(self._miss(nodes))
        await node.serve_steps(self.control.send, self.others.serving)

    async def _miss(self, nodes: tuple[str, ...]) -> None:
        """Say which of `nodes` have not come back to this supervisor."""
        await asyncio.sleep(REJOIN_SECONDS)
        for name in nodes:
            if not self.others.has_joined(name):
                self.others.receive(name, Lost())
                self.node.journal.say(f"node {name} is lost: it did not join the new supervisor of the head")
                self.run_record.lost(*self.run_record.lost_nodes, name)

    def check_authentication(self) -> None:
        """Say so when this Ray lets everybody in who reaches its ports. Raises RlprofError where the job
        wants authentication.
        """
        settings, problem = self.node.settings, no_authentication(installed_version("ray") or "")
        if problem and settings["RAY_AUTH_MODE"] == "token":
            if settings.flag("RLPROF_REQUIRE_RAY_AUTH"):
                raise RlprofError(f"RLPROF_REQUIRE_RAY_AUTH=1: {problem}")
            self.node.journal.say(f"{problem}; RLPROF_REQUIRE_RAY_AUTH=1 refuses it")

    def say_what_is_off(self) -> None:
        """Say so when the job's environment asks Ray for what would cost reports."""
        wanted = os.environ.get(GROUP_CLEANUP, "").strip().lower()
        if self.node.may_profile() and wanted not in ("", "0", "false"):
            self.node.journal.say(
                f"{GROUP_CLEANUP}={wanted} is off in this job: Ray would kill nsys with its worker, while"
                " nsys writes the worker's report"
            )

    # ---- the driver

    async def _serve(self, ray: RayProcess) -> tuple[EndCause, int]:
        """Run the driver, or wait for the end of an interactive cluster. Gives the cause of the end and
        the exit code.
        """
        node = self.node
        node.spawn_watch(node.watch_plugin())
        node.spawn(self._write_attach_file())
        order = asyncio.shield(node.order.given)
        waiting: set[asyncio.Future[Any]] = {order, asyncio.ensure_future(ray.gone.wait())}
        self.driver = Driver.find(node.state) or await self._start_driver()
        if self.driver is not None:
            node.follow_driver(self._driver_log, self.driver.process.pid)
        self._save_nodes()
        ended = asyncio.ensure_future(self.driver.wait()) if self.driver is not None else None
        address = f"{node.place.head_ip}:{node.place.gcs_port}"
        node.spawn_watch(node.helpers.watch_resources(address, self._note_waiting))
        await asyncio.wait({*waiting, *([ended] if ended else [])}, return_when=asyncio.FIRST_COMPLETED)
        driver = ended.result() if ended is not None and ended.done() else None
        if driver is None or driver in SIGNAL_EXIT.values():
            await node.order.come_late()
        return self._cause(ray, driver)

    @property
    def _driver_log(self) -> Path:
        return self.node.place.folder.live / "driver.log"

    async def _start_driver(self) -> Driver | None:
        """None without a COMMAND: the cluster waits for people."""
        node, place = self.node, self.node.place
        if not (command := node.settings["COMMAND"]):
            return None
        log = self._driver_log
        adapters = node.settings.flag(env_names.ADAPTERS)
        driver = await Driver.start(
            command,
            place.folder.path / "command.sh",
            log,
            self._driver_environment(),
            Path(os.environ.get("SLURM_SUBMIT_DIR") or node.cwd),
            node.state,
            session_words(node.request, sys.executable) if adapters else (),
        )
        self.run_record.driver_started()
        node.journal.say(f"the driver runs; its output: {place.run.logs / log.name}")
        return driver

    def _driver_environment(self) -> dict[str, str]:
        """A driver may hand its variables on to workers of a node whose folder can have another path."""
        place = self.node.place
        env = self.node.environment() | variables_of(self.node.request) | {env_names.LEADS: "1"}
        if not self.others.all_have(str(place.folder.path)):
            env[env_names.RAY_TOKEN_PATH] = str(place.run.token)
        return env

    async def _write_attach_file(self) -> None:
        """Write what `attach.sh` reads, and only then say that one can attach."""
        node = self.node
        write = in_background(write_attach_file, node.place, node.environment(), seconds=_STORAGE_SECONDS)
        try:
            await write
        except (OSError, TimeoutError) as error:
            node.journal.say(f"no attach file: {error}")
        if not node.settings["COMMAND"]:
            line = shlex.join(["bash", str(home() / "scripts" / "attach.sh"), str(node.place.run.path)])
            node.journal.say(f"no COMMAND: the cluster waits. Attach with: {line}")

    def _save_nodes(self) -> None:
        state = self.node.state
        lost = self.run_record.lost_nodes
        state.nodes = tuple(sorted({*state.nodes, *self.others.serving()} - lost))
        state.nodes_up = self.state_file.nodes_up
        state.save()

    def _note_waiting(self, text: str) -> None:
        self.node.journal.say(f"the driver waits: {text}" if text else "what the driver waited for is there")
        self.run_record.put(waiting=text)
        if self.node.recording is not None:
            self.node.recording.receive(json.dumps({"unmet": text}))

    def _cause(self, ray: RayProcess, driver: int | None) -> tuple[EndCause, int]:
        order, journal = self.node.order.cause, self.node.journal
        cause, code = why_job_ends(order, driver, self.driver is not None)
        if driver is not None:
            self.run_record.driver_ended(driver)
        if cause is EndCause.DRIVER_EXIT:
            journal.say(f"the driver ended with exit code {driver}")
        elif order is not None:
            journal.say(f"told to end: {cause}{'; the driver ended with it' if driver is not None else ''}")
        else:
            journal.say(f"Ray's head ended by itself; its last words:\n{ray.tail(5)}")
            self.run_record.detail = "Ray's head ended by itself"
        return cause, code

    # ---- messages

    async def order(self, message: Message) -> None:
        """Tell every node, and those that join again."""
        self._orders.append(message)
        await self.control.send(message)

    def take_request(self, request: ProfileRequest) -> None:
        """Go by the trainer's own request."""
        self.node.go_by(request)
        self.run_record.put(request=run_json.shown_request(request), request_by=run_json.BY_TRAINER)
        self.state_file.take_request(request)

    def task_ended(self, name: str, how: str) -> None:
        """A task of another node has ended while the cluster starts: its own message, if there is one, says
        more.
        """
        if name in self.node.place.nodes[1:] and not self.others.have_said(name, Failed, Drained):
            self.on_message(name, Failed(f"node {name}: its task ended before the cluster was up: {how}"))

    def on_message(self, name: str, message: Message) -> None:
        """Take what node `name` says."""
        node = self.node
        if node.relay is not None and isinstance(message, (StepMessage, Lost)):
            node.relay.receive(name, message)
        if isinstance(message, Recorded):
            if node.recording is not None:
                node.recording.receive(message.news)
            return
        if isinstance(message, StateTold):
            self.state_file.receive(name, message)
            return
        self.others.receive(name, message)
        if isinstance(message, Joined):
            self._joined(name, message)
        if isinstance(message, Lost) and self.others.have_said(name, Lost) and self.driver is not None:
            node.journal.say(f"node {name} is lost: its supervisor's link broke")
            self.run_record.lost(*self.run_record.lost_nodes, name)
        if isinstance(message, RayUp) and self.driver is not None:
            self._save_nodes()

    def _joined(self, name: str, message: Joined) -> None:
        if message.before:
            self.run_record.taken_over(name, message.before)
        if name in self.run_record.lost_nodes:
            self.node.journal.say(f"node {name} is back: its supervisor has joined again")
            self.run_record.lost(*self.run_record.lost_nodes - {name})
        for order in self._orders:  # who has heard it already takes it as said
            self.node.spawn(self.control.send(order))

    async def _capture(self, asked: capture_relay.CaptureAsked) -> None:
        """Something is asked while the job runs: every node hears it, this one too."""
        await self.control.send(asked)
        await self.node.take_capture(asked)

    async def _recorded(self, told: dict[str, Any]) -> None:
        """The recorder has found something, or wants a capture of it."""
        if isinstance(finding := told.get("finding"), dict):
            self.node.journal.say(f"found: {finding.get('text')}")
            self.state_file.found(str(finding.get("text")))
            if finding.get("kind") == HANG:
                self.node.helpers.ask_tasks()
        elif isinstance(problem := told.get("problem"), str):
            self.node.journal.note(f"recorder: {problem}")
        elif isinstance(asked := told.get("capture"), str):
            await self._capture(capture_relay.CaptureAsked(asked))
        elif isinstance(hang := told.get("end"), str):
            self.run_record.detail = hang
            self.node.journal.say("it hangs on, and RLPROF_ON_HANG=end: the job ends with all at home")
            self.node.order.give(EndCause.HANG)

    async def _visited(self, asked: Message) -> bool:
        """Somebody with the job's token asks for something."""
        if not self._on_demand or not isinstance(asked, capture_relay.CaptureAsked):
            return False
        self.node.spawn(self._capture(asked))
        return True

    async def _receive_state(self, message: StateTold) -> None:
        self.state_file.receive(self.node.place.node, message)


def write_attach_file(place: NodeContext, env: Mapping[str, str]) -> None:
    """`.secrets/attach.env`, mode 0600: shell assignments that scripts/attach.sh reads, beside the token that
    they point to; every knob among them, which `rlprof retry` takes from here.
    """
    defaults = {name: knob.default for name, knob in read_knobs().items()}
    names = [
        name
        for name in env
        if name in _OF_A_SHELL
        or (name.startswith("RLPROF_") and name not in _OF_THE_JOB)
        or (env[name] != defaults.get(name, env[name]) and name != "COMMAND")
    ]
    values = {**env, env_names.RAY_TOKEN_PATH: str(place.run.token)}
    data = "".join(f"export {name}={shlex.quote(values[name])}\n" for name in sorted(names))
    with place.pinned_run().open() as run:
        run.write_atomic(
            f"{place.run.secrets.name}/attach.env", data.encode("utf-8", errors="replace"), mode=0o600
        )
