"""Ray on a node: found where a supervisor before has started it, else started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import ports, processes, topology
from rlprof_ops.host.background import in_background
from rlprof_ops.job.knobs import Settings
from rlprof_ops.rayenv import check_import, patch_installed
from rlprof_ops.supervisor.node.helper_processes import Helpers
from rlprof_ops.supervisor.node.node_process import NodeProcess
from rlprof_ops.supervisor.node.node_state import NodeState, RayState
from rlprof_ops.supervisor.node.ray_process import (
    RayNode,
    RayProcess,
    cpu_count,
    port_knobs,
    start_argv,
    stripped,
    without_blanks,
)
from rlprof_ops.words import limit

_STOP_SECONDS = 10.0
_PATCH_SECONDS = 150.0  # other nodes with the same installation may hold its lock
_REAP_SECONDS = 5.0  # between two tries to start Ray


class NodeRay:
    """This node's Ray. `environment` and `cwd` are what it starts with; a start that failed leaves `helpers`
    alone.
    """

    def __init__(
        self,
        settings: Settings,
        state: NodeState,
        environment: Callable[[], dict[str, str]],
        cwd: Path,
        helpers: Helpers,
    ) -> None:
        self._settings, self._state = settings, state
        self._place, self._journal = helpers.place, helpers.journal
        self._environment, self._cwd, self._helpers = environment, cwd, helpers
        self._log = self._place.folder.logs / "ray_start.log"
        self._ray: RayProcess | None = None

    async def find_or_start(self, deadline: float) -> RayProcess:
        """The Ray that runs here, up; again where it gives up, which it does after 30 s by itself.

        Raises RlprofError with Ray's own last words.
        """
        before, node = self.find(), self._place.node
        if before is not None and before.up.is_set():
            return before
        with self._journal.phase("ray_start"):
            if before is None and self._settings.flag("RLPROF_PATCH_RAY"):
                await self._patch()
            if before is None:
                ports.check_free(port_knobs(self._settings, self._place.is_head), node)
            for left in reversed(range(self._settings.number("RLPROF_RAY_START_TRIES"))):
                ray, before = before or self._start(await self._command()), None
                # One that hangs leaves time to the next.
                seconds = max(0.0, deadline - asyncio.get_running_loop().time()) / (2 if left else 1)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(ray.settled.wait(), seconds)
                if ray.up.is_set():
                    self._save(ray, up=True)
                    return ray
                if problem := await self.plugin_problem():
                    raise RlprofError(problem)
                late = f"did not come up in {limit(round(seconds))} (RLPROF_READY_SECONDS)"
                what = "ended" if ray.gone.is_set() else late
                words = f"node {node}: `ray start` {what}; its last words:\n{ray.tail()}"
                if not left or asyncio.get_running_loop().time() > deadline:
                    raise RlprofError(words)
                self._journal.say(f"{words}\nnode {node}: trying again, {left} more")
                await self.stop()
                await in_background(self._reap, seconds=_REAP_SECONDS * 3)
        raise RlprofError(f"node {node}: RLPROF_RAY_START_TRIES is 0: Ray is not started")

    def find(self) -> RayProcess | None:
        """What this supervisor, or one before it, has started; up or not."""
        known = self._state.ray
        if self._ray is None and known is not None:
            begin = None if known.up else known.log_offset
            self._ray = RayProcess(NodeProcess(known.pid, known.started), self._log, begin)
        return self._ray

    async def _patch(self) -> None:
        """Repair Ray's own nsight plugin in the installed file. Raises RlprofError where that fails."""
        node = self._place.node
        try:
            env = self._environment()
            said = await in_background(patch_installed, sys.executable, env, seconds=_PATCH_SECONDS)
        except RlprofError as error:
            raise RlprofError(f"node {node}: RLPROF_PATCH_RAY=1: {error}") from error
        self._journal.say(f"node {node}: RLPROF_PATCH_RAY=1: Ray's nsight plugin: {said}")

    async def _command(self) -> list[str]:
        place = self._place
        found = RayNode(
            place.node,
            place.ip,
            f"{place.head_ip}:{place.gcs_port}",
            place.is_head,
            place.gpus,
            place.folder.ray,
            cpu_count(self._settings, os.environ),
            await self._topology(),
        )
        return start_argv(self._settings, found, without_blanks(sys.executable, place.folder.path))

    async def _topology(self) -> dict[str, float]:
        """What RLPROF_TOPOLOGY asks for: Ray resources, and NeMo RL's file of the CPUs beside each GPU."""
        if not self._settings.flag("RLPROF_TOPOLOGY"):
            return {}
        affinity = self._place.folder.path / "gpu_cpu_affinity"
        if await in_background(topology.write_affinity, affinity, seconds=120):
            os.environ.setdefault("NRL_GPU_CPU_AFFINITY_FILE", str(affinity))
        return await in_background(topology.resources, dict(os.environ), self._place.index, seconds=120)

    def _start(self, argv: list[str]) -> RayProcess:
        ray = self._ray = RayProcess.start(argv, stripped(self._environment()), self._log, self._cwd)
        self._save(ray, up=False)
        return ray

    def _save(self, ray: RayProcess, *, up: bool) -> None:
        process = ray.process
        self._state.ray = RayState(process.pid, process.started, ray.begin or 0, up)
        self._state.save()

    def _reap(self) -> None:
        """End what Ray has left of a start that failed."""
        spare = frozenset(self._helpers.pids)
        found = processes.of_job(self._place.job, self._place.folder.path, exclude=spare)
        processes.end(found, grace_s=_REAP_SECONDS)

    async def plugin_problem(self) -> str:
        """Why Ray here cannot load our plugin, of which Ray itself only says that a node timed out; "" where
        it can.
        """
        env, reason = self._environment(), None
        if env_names.REQUEST_JSON in env:
            most_s = float(self._settings.number("RLPROF_READY_SECONDS"))
            reason = await in_background(check_import, env, timeout_s=most_s, seconds=most_s * 2)
        if reason is None:
            return ""
        return f"node {self._place.node}: Ray under {sys.executable} cannot load the rlprof plugin: {reason}"

    async def stop(self) -> None:
        """SIGTERM to our own `ray start`, which ends its children; after a while SIGKILL to its group."""
        if (ray := self.find()) is not None:
            await ray.process.end(_STOP_SECONDS)
