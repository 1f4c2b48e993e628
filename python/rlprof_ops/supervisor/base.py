"""What the supervisors of the head and of the other nodes share: the environment, signals, the start of
this node's Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from rlprof_ops import env_names, trainers
from rlprof_ops.collect.drain.sequence import Budget
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import ports, topology
from rlprof_ops.host.background import in_background
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.knobs import Settings, home, python_path
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.rayenv import check_import, environment
from rlprof_ops.request import ProfileRequest, request_from_json
from rlprof_ops.runtime import trainer_request
from rlprof_ops.runtime.on_demand.watcher import CaptureRequest
from rlprof_ops.runtime.process.worker_identity import OF_ONE_PROCESS
from rlprof_ops.supervisor import capture_relay
from rlprof_ops.supervisor.beside.distilling import Distilling
from rlprof_ops.supervisor.beside.recording import Recording
from rlprof_ops.supervisor.capture_relay import CaptureAsked
from rlprof_ops.supervisor.node_drain import Journal, NodeDrain
from rlprof_ops.supervisor.ray_process import (
    RayNode,
    RayProcess,
    cpu_count,
    plugin_message,
    port_knobs,
    start_argv,
    stripped,
)
from rlprof_ops.supervisor.steps import state_relay
from rlprof_ops.supervisor.steps.state_relay import StateTold
from rlprof_ops.supervisor.steps.step_relay import StepRelay, Tell
from rlprof_ops.supervisor.steps.windows import Windows
from rlprof_ops.supervisor.takeover.handover import Adopted, Handover, end_helpers
from rlprof_ops.supervisor.takeover.reins import Reins
from rlprof_ops.words import limit

_PLUGIN_SECONDS = 30.0
_REAP_SECONDS = 60.0  # between two tries to start Ray
_RAY_STOP_SECONDS = 10.0
_HELPERS_SECONDS = 20.0


class Supervisor:
    """One node of a job: its Ray, and its files through a `NodeDrain`. Subclasses say what the head and what
    the others do in between.
    """

    def __init__(
        self,
        settings: Settings,
        request: ProfileRequest,
        place: NodeContext,
        journal: Journal,
        reins: Reins | None = None,
    ) -> None:
        self.settings, self.request, self.place, self.journal = settings, request, place, journal
        self.reins = reins or Reins()
        self.cwd = Path.cwd()  # of what is the user's own: Ray, and with it the workers, and SETUP_COMMAND
        self.ray: RayProcess | None = None
        self.on_demand: asyncio.Task[None] | None = None
        self.windows: Windows | None = None
        self.relay: StepRelay | None = None
        self.recording: Recording | None = None
        self.distilling: Distilling | None = None
        self.helpers: set[int] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._telling: asyncio.Task[None] | None = None
        self.shutdown_requested: asyncio.Future[EndCause] | None = None  # a future needs the loop that runs
        self.files = NodeDrain(
            settings, place, journal, self.environment, sessions=self._asked(), spare=self.helpers
        )

    # ---- environment
    # -------------------------------------------------------------------------------------------

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
        if self._asked():  # it would kill nsys with its worker, while nsys writes the worker's report
            env[GROUP_CLEANUP] = "0"
        env["RAY_AUTH_TOKEN_PATH"] = str(place.run.token)
        env["RLINF_NODE_RANK"] = str(place.nodes.index(place.node) if place.node in place.nodes else 0)
        env |= {
            env_names.JOB: place.job,
            env_names.NODE: place.node,
            env_names.NODE_DIR: str(place.folder.path),
            env_names.RUN_DIR: str(place.run.path),
            env_names.HOME: str(home()),
        }
        if self.request:
            env[env_names.REQUEST_JSON] = self.request.to_json()
        return env

    # ---- start
    # -------------------------------------------------------------------------------------------------

    def listen_to_signals(self) -> None:
        """SIGTERM: the job ends now. SIGUSR2: its time runs out. The first one decides the cause."""
        loop = asyncio.get_running_loop()
        self.shutdown_requested = loop.create_future()
        for number, cause in (
            (signal.SIGTERM, EndCause.SIGNAL),
            (signal.SIGINT, EndCause.SIGNAL),
            (signal.SIGUSR2, EndCause.TIME_LIMIT),
        ):
            loop.add_signal_handler(number, self.tell_to_end, cause)
            if number == self.reins.told:
                self.tell_to_end(cause)

    def tell_to_end(self, cause: EndCause) -> None:
        assert self.shutdown_requested is not None
        if not self.shutdown_requested.done():
            self.shutdown_requested.set_result(cause)

    async def run_setup(self) -> None:
        """SETUP_COMMAND, once, before Ray. Raises RlprofError with its exit code."""
        command = self.settings["SETUP_COMMAND"]
        if not command:
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

    async def start_ray(self, deadline: float) -> None:
        """Start Ray and wait until it says that it runs; again when it gives up, which it does after 30 s by
        itself.

        Raises RlprofError with Ray's own last words.
        """
        place = self.place
        ports.check_free(port_knobs(self.settings, place.is_head), place.node)
        node = RayNode(
            place.node,
            place.ip,
            f"{place.head_ip}:{place.gcs_port}",
            place.is_head,
            place.gpus,
            place.folder.ray,
            cpu_count(self.settings, os.environ),
            await self._topology(),
        )
        with self.journal.phase("ray_start"):
            for left in reversed(range(self.settings.number("RLPROF_RAY_START_TRIES"))):
                ray = await self._try_to_start(start_argv(self.settings, node, sys.executable), deadline)
                if ray.up.is_set():
                    return
                await self._blame_plugin()
                what = "ended" if ray.gone.is_set() else "did not come up in time"
                words = f"node {place.node}: `ray start` {what}; its last words:\n{ray.tail()}"
                if not left or asyncio.get_running_loop().time() > deadline:
                    raise RlprofError(words)
                self.journal.say(f"{words}\nnode {place.node}: trying again, {left} more")
                await self.stop_ray()
                await self.files.reap(Budget(_REAP_SECONDS))

    async def _topology(self) -> dict[str, float]:
        """What RLPROF_TOPOLOGY asks for: Ray resources, and NeMo RL's file of the CPUs beside each GPU."""
        if not self.settings.flag("RLPROF_TOPOLOGY"):
            return {}
        place = self.place
        affinity = place.folder.path / "gpu_cpu_affinity"
        if await in_background(topology.write_affinity, affinity, seconds=120):
            os.environ.setdefault("NRL_GPU_CPU_AFFINITY_FILE", str(affinity))
        index = place.nodes.index(place.node) if place.node in place.nodes else 0
        return await in_background(topology.resources, dict(os.environ), index, seconds=120)

    async def _try_to_start(self, argv: list[str], deadline: float) -> RayProcess:
        self.ray = await RayProcess.start(
            argv, stripped(self.environment()), self.place.folder.logs / "ray_start.log", self.cwd
        )
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(
                self.ray.settled.wait(), max(0.0, deadline - asyncio.get_running_loop().time())
            )
        return self.ray

    async def _blame_plugin(self) -> None:
        """Raise RlprofError when the plugin is why Ray did not start: Ray itself only says that a node
        timed out.
        """
        reason = None
        if self.request:
            reason = await in_background(check_import, self.environment(), seconds=120)
        if reason is not None:
            raise RlprofError(plugin_message(self.place.node, reason))

    async def watch_plugin(self) -> None:
        """Say so when this node's runtime-env agent did not load our plugin: its windows would be lost in
        silence.
        """
        if not self._wraps():
            return
        for _ in range(int(_PLUGIN_SECONDS / 0.25)):
            if self.place.folder.plugin_marker.exists():
                self.files.plugin_loaded = True
                return
            await asyncio.sleep(0.25)
        self.journal.say(
            f"node {self.place.node} did not load the rlprof plugin within {limit(_PLUGIN_SECONDS)}: nsight"
            " windows of its workers will be missing. The reason stands in runtime_env_agent.log of this"
            " node under ray/."
        )

    # ---- one supervisor after another
    # -----------------------------------------------------------------------------------------------

    def hand_over(self, left: Handover) -> None:
        """Leave what another supervisor needs, should this one be killed, and let the keeper know."""
        try:
            left.leave(self.place.folder.path)
        except OSError as error:
            self.journal.say(f"node {self.place.node}: no supervisor can take over from this one: {error}")
            return
        self.reins.serves()

    async def find_what_is_left(self) -> Handover:
        """What the supervisor before has left here. Raises RlprofError where that is nothing."""
        place = self.place
        left = Handover.find(place.folder.path)
        self.journal.say(
            f"node {place.node}: the supervisor {self.reins.before} while the job ran; this one goes on in"
            " its place"
        )
        self.files.started_ns = left.started_ns or self.files.started_ns
        self.journal.phases_s |= left.phases_s
        asked = trainer_request.with_request({env_names.NODE_DIR: str(place.folder.path)})
        if not self.request and env_names.REQUEST_JSON in asked:
            told = asked[env_names.REQUEST_JSON]
            self.take_request(request_from_json(told, "the trainer's configuration"))
        self.ray = RayProcess(Adopted(left.ray, self.reins), place.folder.logs / "ray_start.log", begin=None)
        return left

    async def end_old_helpers(self) -> None:
        """Those of a supervisor before, where there was one."""
        if not self.reins.before:
            return
        place = self.place
        ended = in_background(end_helpers, place.job, place.folder.path, seconds=_HELPERS_SECONDS)
        await self.files.survived(ended, _HELPERS_SECONDS, "ending the helpers of the supervisor before")

    # ---- while the job runs
    # --------------------------------------------------------------------------------------------------------

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside everything else until `end_background`."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def end_background(self) -> None:
        for task in list(self._background):
            task.cancel()

    def tell_state(self, send: Callable[[StateTold], Awaitable[None]]) -> None:
        """Tell the head how this node's processes stand; all of it again where the head is a new one."""
        if self._telling is not None:
            self._telling.cancel()
        self._telling = self.background(state_relay.tell(self.place.folder.path / "events", send))

    def _asked(self) -> bool:
        """Whether there can be sessions of ours."""
        return bool(self.request) or self.settings[env_names.ON_DEMAND] != "0"

    def _wraps(self) -> bool:
        """Whether workers may have to be wrapped in nsys, now or for a capture on demand."""
        return bool(self.request) or self.settings[env_names.ON_DEMAND] == "nsight"

    async def serve_steps(self, tell: Tell, others: Callable[[], Iterable[str]] | None = None) -> None:
        """Take the job's steps from the driver, and open this node's windows at them."""
        place = self.place
        if not self.settings.flag(env_names.ADAPTERS) or not self._asked():
            return
        self.windows = Windows(place.folder.path, self.request, self.journal.note)
        relay = StepRelay(
            place.folder.path, place.node, self.windows, tell, self.journal.note, self.take_request
        )
        try:
            await relay.listen(others, resumed=bool(self.reins.before))
        except OSError as error:
            self.journal.say(f"node {place.node}: no step clock: {error}")
            return
        self.relay = relay

    def start_recording(self, on_told: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        """Record this node from now on, unless RLPROF_RECORD is 0."""
        if self.settings.flag(env_names.RECORD):
            self.recording = Recording(self.place, self.environment, self.journal.note, on_told, self.helpers)
            self.recording.start()

    async def start_distilling(self) -> None:
        """Read finished reports of this node beside the training, unless RLPROF_DISTIL_MIB is 0."""
        memory_mib = self.settings.number("RLPROF_DISTIL_MIB")
        if memory_mib and self._asked():
            self.distilling = Distilling(self.place, self.environment, self.journal.note, self.helpers)
            await self.distilling.start(memory_mib)

    def take_request(self, request: ProfileRequest) -> None:
        """The job goes by the trainer's own request, since it was asked for nothing itself."""
        self.request = request

    def _on_demand(self, demand: CaptureRequest) -> None:
        if self.relay is not None:
            self.relay.demand(demand)

    async def take_demand(self, asked: CaptureAsked) -> None:
        """Hand what `rlprof capture` asks to this node's workers, or take their stacks."""
        place = self.place
        try:
            request = await capture_relay.take(
                asked, place.run.path, place.folder.path, place.node, self.journal.note
            )
        except OSError as error:
            self.journal.say(f"node {place.node}: a capture on demand could not be handed on: {error}")
            return
        if request is not None:
            self._on_demand(request)

    # ---- the end
    # --------------------------------------------------------------------------------------------------------

    async def close_profilers(self, budget: Budget) -> None:
        """The first half of the drain, while Ray runs: no new window, and the open ones are closed."""
        if self.on_demand is not None:
            self.on_demand.cancel()
        if self.distilling is not None:
            self.distilling.end()
        if self.windows is not None:
            seconds = budget.share("close_windows") / 2
            await self.files.survived(self.windows.close(), seconds, "closing windows")
        await self.files.close_profilers(budget)

    async def stop_node(self) -> None:
        """The recorder keeps its last rows, then this node's Ray goes."""
        if self.recording is not None:
            await self.recording.end()
        await self.stop_ray()

    async def stop_ray(self) -> None:
        """Tell this node's `ray start` to end, and wait for that."""
        if self.ray is not None:
            await self.ray.stop(timeout_s=_RAY_STOP_SECONDS)
        if self.relay is not None:
            self.relay.close()


GROUP_CLEANUP = "RAY_process_group_cleanup_enabled"
_PASSED_ON = (
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV",
    "RAY_worker_register_timeout_seconds",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S",
    "OMP_NUM_THREADS",
    *env_names.HANDED_ON,
)
