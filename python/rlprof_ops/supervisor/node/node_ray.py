"""Ray on a node: found where a supervisor before has started it, else started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import ports, processes, topology
from rlprof_ops.host.background import in_background
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.rayenv import check_import
from rlprof_ops.supervisor.node.journal import Journal
from rlprof_ops.supervisor.node.node_process import NodeProcess
from rlprof_ops.supervisor.node.node_state import NodeState, RayState
from rlprof_ops.supervisor.node.ray_process import (
    RayNode,
    RayProcess,
    cpu_count,
    plugin_message,
    port_knobs,
    start_argv,
    stripped,
)

_STOP_SECONDS = 10.0
_REAP_SECONDS = 5.0  # between two tries to start Ray


class NodeRay:
    """This node's Ray. `environment` and `cwd` are what it starts with, `helpers` pids that a start which
    failed leaves alone.
    """

    def __init__(
        self,
        settings: Settings,
        place: NodeContext,
        journal: Journal,
        state: NodeState,
        environment: Callable[[], dict[str, str]],
        cwd: Path,
        helpers: Collection[int],
    ) -> None:
        self._settings, self._place, self._journal, self._state = settings, place, journal, state
        self._environment, self._cwd, self._helpers = environment, cwd, helpers
        self._log = place.folder.logs / "ray_start.log"
        self._ray: RayProcess | None = None

    async def find_or_start(self, deadline: float) -> RayProcess:
        """The Ray that runs here, up; again where it gives up, which it does after 30 s by itself.

        Raises RlprofError with Ray's own last words.
        """
        before, node = self.find(), self._place.node
        if before is not None and before.up.is_set():
            return before
        with self._journal.phase("ray_start"):
            argv = [] if before is not None else await self._command()
            for left in reversed(range(self._settings.number("RLPROF_RAY_START_TRIES"))):
                ray, before = before or self._start(argv), None
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(
                        ray.settled.wait(), max(0.0, deadline - asyncio.get_running_loop().time())
                    )
                if ray.up.is_set():
                    self._save(ray, up=True)
                    return ray
                await self._blame_plugin()
                what = "ended" if ray.gone.is_set() else "did not come up in time"
                words = f"node {node}: `ray start` {what}; its last words:\n{ray.tail()}"
                if not left or asyncio.get_running_loop().time() > deadline:
                    raise RlprofError(words)
                self._journal.say(f"{words}\nnode {node}: trying again, {left} more")
                await self.stop()
                await in_background(self._reap, seconds=_REAP_SECONDS * 3)
                argv = argv or await self._command()
        raise RlprofError(f"node {node}: RLPROF_RAY_START_TRIES is 0: Ray is not started")

    def find(self) -> RayProcess | None:
        """What this supervisor, or one before it, has started; up or not."""
        known = self._state.ray
        if self._ray is None and known is not None:
            begin = None if known.up else known.log_offset
            self._ray = RayProcess(NodeProcess(known.pid, known.started), self._log, begin)
        return self._ray

    async def _command(self) -> list[str]:
        place = self._place
        ports.check_free(port_knobs(self._settings, place.is_head), place.node)
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
        return start_argv(self._settings, found, sys.executable)

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
        spare = frozenset(self._helpers)
        found = processes.of_job(self._place.job, self._place.folder.path, exclude=spare)
        processes.end(found, grace_s=_REAP_SECONDS)

    async def _blame_plugin(self) -> None:
        """Raise RlprofError when the plugin is why Ray did not start: Ray itself only says that a node
        timed out.
        """
        env, reason = self._environment(), None
        if env_names.REQUEST_JSON in env:
            reason = await in_background(check_import, env, seconds=120)
        if reason is not None:
            raise RlprofError(plugin_message(self._place.node, reason))

    async def stop(self) -> None:
        """Tell this node's `ray start` to end, and wait for that."""
        if (ray := self.find()) is not None:
            await ray.stop(_STOP_SECONDS)
