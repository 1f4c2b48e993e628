"""What a node of a job has: its Ray, steps and windows, helpers, files, and what is asked of it."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from rlprof_ops import backends, env_names, trainers
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import processes
from rlprof_ops.host.background import in_background
from rlprof_ops.job.knobs import Settings, home, python_path
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.rayenv import environment
from rlprof_ops.request import ProfileRequest
from rlprof_ops.request.steps_from import StepsFrom
from rlprof_ops.runtime.process.worker_identity import OF_ONE_PROCESS
from rlprof_ops.supervisor import capture_relay
from rlprof_ops.supervisor.capture_relay import CaptureAsked
from rlprof_ops.supervisor.node.helper_processes import (
    Helpers,
    NodeSync,
    TalkingHelper,
    is_helper,
    log_follower,
    recorder,
)
from rlprof_ops.supervisor.node.journal import Journal
from rlprof_ops.supervisor.node.node_ray import NodeRay
from rlprof_ops.supervisor.node.node_state import EndOrder, NodeState
from rlprof_ops.supervisor.steps import driver_log, state_relay
from rlprof_ops.supervisor.steps.session_windows import Windows
from rlprof_ops.supervisor.steps.state_relay import StateTold
from rlprof_ops.supervisor.steps.step_relay import Send, StepRelay
from rlprof_ops.words import limit

GROUP_CLEANUP = "RAY_process_group_cleanup_enabled"
_PASSED_ON = (
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV",
    "RAY_worker_register_timeout_seconds",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S",
    "OMP_NUM_THREADS",
    *env_names.HANDED_ON,
)
_HELPER_SECONDS = 2.0  # enough for the recorder to keep what it has; a sync loses nothing by a kill
_LEFT_SECONDS = 20.0
_PLUGIN_SECONDS, _LOOK_S = 30.0, 0.25


class Node:
    """One node of a job, as its supervisor has it.

    `before`: how the supervisor ended in whose place this one is; "" for the first. `cwd`: of what is the
    user's own: Ray, and with it the workers, and SETUP_COMMAND.
    """

    def __init__(
        self,
        settings: Settings,
        request: ProfileRequest,
        place: NodeContext,
        journal: Journal,
        state: NodeState,
        order: EndOrder,
        cwd: Path,
        before: str = "",
    ) -> None:
        self.settings, self.request, self.place, self.journal = settings, request, place, journal
        self.state, self.order, self.cwd, self.before = state, order, cwd, before
        self.clock: list[dict[str, Any]] = []  # what the probes of the node's clock found
        self.helpers = Helpers(place, journal, lambda: self.environment())
        self.sync = NodeSync(settings, self.helpers)
        self.ray = NodeRay(settings, state, lambda: self.environment(), cwd, self.helpers)
        self.windows: Windows | None = None
        self.relay: StepRelay | None = None
        self.recording: TalkingHelper | None = None
        self.log_follower: TalkingHelper | None = None
        self.distiller: Process | None = None
        self.take_request: Callable[[ProfileRequest], None] = self.go_by
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: list[asyncio.Task[None]] = []
        self._sending: asyncio.Task[None] | None = None

    # ---- environment

    def environment(self) -> dict[str, str]:
        """What every process of the job on this node gets: the driver this, Ray's processes this without
        SLURM_*.
        """
        place = self.place
        # Whoever submitted the job may be a profiled process itself.
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in (*OF_ONE_PROCESS, env_names.LEADS)
        }
        for name in _PASSED_ON:  # an empty OMP_NUM_THREADS is a value to OpenMP, and a wrong one
            env.pop(name, None)
            if self.settings[name]:
                env[name] = self.settings[name]
        env.update(
            environment(env)
        )  # without a request too: it repairs Ray's nsight for trainers that use that
        env.update(trainers.environment())
        env["PYTHONPATH"] = python_path(env.get("PYTHONPATH"), self.settings.flag(env_names.ADAPTERS))
        env["RAY_ADDRESS"] = f"{place.head_ip}:{place.gcs_port}"
        env["RAY_AUTH_MODE"] = self.settings["RAY_AUTH_MODE"]
        env.pop("RAY_AUTH_TOKEN", None)
        if self.may_profile():  # it would kill nsys with its worker, while nsys writes the worker's report
            env[GROUP_CLEANUP] = "0"
        env[env_names.RAY_TOKEN_PATH] = str(self.state.token_file(place.run.token))
        env["RLINF_NODE_RANK"] = str(place.index)
        env |= {
            env_names.JOB: place.job,
            env_names.NODE: place.node,
            env_names.NODE_DIR: str(place.folder.path),
            env_names.RUN_DIR: str(place.run.path),
            env_names.HOME: str(home()),
        }
        if env.pop(env_names.EARLIER_ATTEMPTS, ""):  # NeMo RL itself would take again what is home
            for name in (*env_names.NRL_STEP_RANGE.values(), *env_names.NRL_WORKER_PATTERNS.values()):
                env.pop(name, None)
        env.pop(env_names.WHOLE_REQUEST_JSON, None)
        if self.state.whole_request:
            env[env_names.WHOLE_REQUEST_JSON] = self.state.whole_request
        if self.request or self.state.whole_request:  # also where nothing is left: variables have all of it
            env[env_names.REQUEST_JSON] = self.request.to_json()
        return env

    def may_profile(self) -> bool:
        """Whether there can be sessions of ours."""
        return bool(self.request) or self.settings[env_names.ON_DEMAND] != "0"

    # ---- start

    async def end_what_was_before(self) -> None:
        """End what a supervisor before ran beside the training, which goes on without it anyway: two syncs or
        two recorders of a node would write the same files. All of the job, where Ray was not even begun.
        """
        node = self.place.node
        if self.before:
            self.journal.say(f"node {node}: the supervisor {self.before}; this one goes on in its place")
        try:
            await in_background(self._end_left, seconds=_LEFT_SECONDS)
        except (OSError, TimeoutError) as error:
            self.journal.say(f"node {node}: ending the helpers of the supervisor before: {error}")

    def _end_left(self) -> None:
        found = processes.of_job(self.place.job, self.place.folder.path)
        if self.state.ray is not None:
            found = [each for each in found if is_helper(each)]
        processes.end(found, grace_s=_HELPER_SECONDS)

    async def run_setup(self) -> None:
        """SETUP_COMMAND, before Ray, unless that was done. Raises RlprofError with its exit code."""
        command = self.settings["SETUP_COMMAND"]
        if not command or self.state.setup_done:
            return
        with self.journal.phase("setup_command"), open(self.place.folder.logs / "setup.log", "ab") as log:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-s"),
                env=self.environment(),
                cwd=self.cwd,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
            await process.communicate(command.encode())
        if process.returncode:
            raise RlprofError(
                f"node {self.place.node}: SETUP_COMMAND ended with exit code {process.returncode}"
            )
        self.state.setup_done = True
        self.state.save()

    async def watch_plugin(self) -> None:
        """Say so when this node's runtime-env agent did not load our plugin: its windows would be lost in
        silence.
        """
        if not self.request and not backends.wraps(self.settings[env_names.ON_DEMAND]):
            return
        for _ in range(int(_PLUGIN_SECONDS / _LOOK_S)):
            if self.place.folder.plugin_marker.exists():
                return
            await asyncio.sleep(_LOOK_S)
        self.journal.say(
            f"node {self.place.node} did not load the rlprof plugin within {limit(_PLUGIN_SECONDS)}: nsight"
            " windows of its workers will be missing. The reason stands in runtime_env_agent.log of this"
            " node under ray/."
        )

    # ---- beside Ray

    async def start_services(
        self,
        send_state: Callable[[StateTold], Awaitable[None]],
        on_recorded: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Start what runs beside Ray: sync, state, recorder, distiller."""
        self.sync.begin()
        self.send_state(send_state)
        self.start_recording(on_recorded)
        memory_mib = self.settings.number("RLPROF_DISTIL_MIB")
        if memory_mib and self.may_profile():
            try:
                self.distiller = await self.helpers.distil(memory_mib)
            except OSError as error:
                self.journal.note(f"node {self.place.node}: no report is distilled: {error}")

    def start_recording(self, on_recorded: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        """Record this node from now on, unless RLPROF_RECORD is 0."""
        if self.settings.flag(env_names.RECORD):
            self.recording = recorder(self.helpers, on_recorded)

    async def serve_steps(self, tell: Send, others: Callable[[], Iterable[str]] | None = None) -> None:
        """Take the job's steps from the driver, and open this node's windows at them. `tell` sends to the
        head, or, with `others`, from the head to those.
        """
        place = self.place
        wanted = self.may_profile() or self.steps_from is not None
        if not self.settings.flag(env_names.ADAPTERS) or not wanted or self.state.drained:
            return
        self.windows = Windows(place.folder.path, self.request, self.journal.note, self.cwd)
        relay = StepRelay(
            place.folder.path,
            place.node,
            self.windows,
            tell,
            self.journal.note,
            lambda request: self.take_request(request),
            self._on_steps,
        )
        try:
            await relay.listen(others)
        except OSError as error:
            self.journal.say(f"node {place.node}: no step clock: {error}")
            return
        self.relay = relay

    @property
    def steps_from(self) -> StepsFrom | None:
        """The rule by which the driver's output tells steps."""
        return self.request.steps_from if self.request.enabled else None

    def follow_driver(self, log: Path, pid: int) -> None:
        """Take steps from the output of the driver, where the request has a rule for that."""
        rule = self.steps_from
        if rule is None:
            return
        if self.relay is None:
            self.journal.say("steps_from is not used: this job has no step clock (RLPROF_ADAPTERS)")
            return
        self.log_follower = log_follower(self.helpers, driver_log.words_of(rule, log, pid))
        self.journal.say(f"steps are known from {rule}, until a process tells them itself")

    def _on_steps(self) -> None:
        """A process of the job tells its steps."""
        if self.log_follower is not None:
            self.spawn(self.log_follower.end())
            self.log_follower = None
            self.journal.say("steps_from is not used: a process of the job tells its steps itself")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside everything else until `cancel_background`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel_background(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def spawn_watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside the training until the job's end begins."""
        self._watches.append(asyncio.create_task(work))

    def end_watching(self) -> None:
        for task in self._watches:
            task.cancel()

    def send_state(self, send: Callable[[StateTold], Awaitable[None]]) -> None:
        """Tell the head how this node's processes stand; all of it again where the head is a new one."""
        if self._sending is not None:
            self._sending.cancel()
        self._sending = self.spawn(state_relay.send(self.place.folder.path / "events", send))

    # ---- what is asked while the job runs

    def go_by(self, request: ProfileRequest) -> None:
        """The job goes by the trainer's own request, since it was asked for nothing itself."""
        self.request, self.state.request = request, request.to_json()
        self.state.save()

    async def take_capture(self, asked: CaptureAsked) -> None:
        """Hand what `rlprof capture` asks to this node's workers, or take their stacks."""
        place = self.place
        try:
            request = await capture_relay.take(
                asked, place.run.path, place.folder.path, place.node, self.journal.note
            )
        except OSError as error:
            self.journal.say(f"node {place.node}: a capture on demand could not be handed on: {error}")
            return
        if request is not None and self.relay is not None:
            self.relay.on_request(request)
