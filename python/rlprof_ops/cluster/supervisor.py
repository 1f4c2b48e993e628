"""What the supervisors of the head and of the other nodes share: start this node's Ray, keep its files, end it in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from rlprof_ops.cluster import on_demand, ports
from rlprof_ops.cluster.journal import Journal
from rlprof_ops.cluster.knobs import Settings, home, import_path
from rlprof_ops.cluster.layout import NodeFolder, RunFolder
from rlprof_ops.cluster.ray_process import RayNode, RayProcess, port_knobs, start_argv, stripped
from rlprof_ops.collect import drain
from rlprof_ops.errors import EXIT_FAILED, RlprofError
from rlprof_ops.rayenv import check_import, environment
from rlprof_ops.request import ProfileRequest

_PLUGIN_SECONDS = 30.0
_SYNC_RESTARTS = 5
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Place:
    """Where this supervisor is: the job, this node, and the head."""

    job: str
    node: str
    ip: str
    head_ip: str
    gcs_port: int
    control_port: int
    is_head: bool
    nodes: tuple[str, ...]
    run: RunFolder
    folder: NodeFolder
    gpus: int
    token: str


def plugin_message(node: str, reason: str) -> str:
    return f"node {node}: Ray under {sys.executable} cannot load the rlprof plugin: {reason}"


class Supervisor:
    """One node of a job. Subclasses say what the head and what the others do in between."""

    def __init__(self, settings: Settings, request: ProfileRequest, place: Place, journal: Journal) -> None:
        self.settings = settings
        self.request = request
        self.place = place
        self.journal = journal
        self.ray: RayProcess | None = None
        self.sync: asyncio.subprocess.Process | None = None
        self._sync_watch: asyncio.Task[None] | None = None
        self.on_demand: asyncio.Task[None] | None = None
        self.plugin_loaded = False
        self.told_to_end: asyncio.Future[str] | None = None
        self._started_ns = time.time_ns()
        self.clock: list[dict[str, Any]] = []  # what the probes of the node's clock found, see collect/clock.py
        self.helpers: set[int] = set()
        self._recovered: tuple[str, ...] = ()
        self._failed: tuple[tuple[str, str], ...] = ()

    # ---- environment -------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """What every process of the job on this node gets: the driver this, Ray's processes this without SLURM_*."""
        place = self.place
        env = dict(os.environ)
        for name in _PASSED_ON:  # an empty OMP_NUM_THREADS is a value to OpenMP, and a wrong one
            env.pop(name, None)
            if self.settings[name]:
                env[name] = self.settings[name]
        env.update(environment(env))  # without a request too: it repairs Ray's nsight for trainers that use that
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [import_path(), env.get("PYTHONPATH")]))
        env["RAY_ADDRESS"] = f"{place.head_ip}:{place.gcs_port}"
        env["RAY_AUTH_MODE"] = self.settings["RAY_AUTH_MODE"]
        env.pop("RAY_AUTH_TOKEN", None)
        env["RAY_AUTH_TOKEN_PATH"] = str(place.run.token)
        env["RLINF_NODE_RANK"] = str(place.nodes.index(place.node) if place.node in place.nodes else 0)
        env |= {
            "RLPROF_JOB": place.job,
            "RLPROF_NODE": place.node,
            "RLPROF_NODE_DIR": str(place.folder.path),
            "RLPROF_RUN_DIR": str(place.run.path),
            "RLPROF_HOME": str(home()),
        }
        if self.request:
            env["RLPROF_REQUEST_JSON"] = self.request.to_json()
        return env

    # ---- start -------------------------------------------------------------------------------------------------

    def listen_to_signals(self) -> None:
        """SIGTERM: the job ends now. SIGUSR2: its time runs out. The first one decides the cause."""
        loop = asyncio.get_running_loop()
        self.told_to_end = loop.create_future()
        for number, cause in (
            (signal.SIGTERM, "signal"),
            (signal.SIGINT, "signal"),
            (signal.SIGUSR2, "time_limit"),
        ):
            loop.add_signal_handler(number, self.tell_to_end, cause)

    def tell_to_end(self, cause: str) -> None:
        assert self.told_to_end is not None
        if not self.told_to_end.done():
            self.told_to_end.set_result(cause)

    async def run_setup(self) -> None:
        """SETUP_COMMAND, once, before Ray. Raises RlprofError with its exit code."""
        command = self.settings["SETUP_COMMAND"]
        if not command:
            return
        with self.journal.phase("setup_command"), open(self.place.folder.logs / "setup.log", "ab") as log:
            process = await asyncio.create_subprocess_exec(
                "bash", "-s", env=self.environment(), stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log
            )
            await process.communicate(command.encode())
        if process.returncode:
            raise RlprofError(
                f"node {self.place.node}: SETUP_COMMAND ended with exit code {process.returncode}"
            )

    async def start_ray(self, deadline: float) -> None:
        """Start Ray and wait until it says that it runs; again when it gives up, which it does after 30 s by itself.

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

    async def _try_to_start(self, argv: list[str], deadline: float) -> RayProcess:
        self.ray = await RayProcess.start(
            argv, stripped(self.environment()), self.place.folder.logs / "ray_start.log"
        )
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.ray.settled.wait(), max(0.0, deadline - asyncio.get_running_loop().time()))
        return self.ray

    async def _blame_plugin(self) -> None:
        """Raise RlprofError when the plugin is why Ray did not start: Ray itself only says that a node timed out."""
        reason = await asyncio.to_thread(check_import, self.environment()) if self.request else None
        if reason is not None:
            raise RlprofError(plugin_message(self.place.node, reason))

    async def watch_plugin(self) -> None:
        """Say so when this node's runtime-env agent did not load our plugin: its windows would be lost in silence."""
        if not self._wraps():
            return
        for _ in range(int(_PLUGIN_SECONDS / 0.25)):
            if self.place.folder.plugin_marker.exists():
                self.plugin_loaded = True
                return
            await asyncio.sleep(0.25)
        self.journal.say(
            f"node {self.place.node} did not load the rlprof plugin within {_PLUGIN_SECONDS:.0f} s: nsight windows of"
            " its workers will be missing. The reason stands in runtime_env_agent.log of this node under ray/."
        )

    def _wraps(self) -> bool:
        """Whether workers may have to be wrapped in nsys, now or for a capture on demand."""
        return bool(self.request) or self.settings["RLPROF_ON_DEMAND"] == "nsight"

    def serve_demands(self) -> None:
        """Hand what `rlprof capture` asks to this node's workers, until the windows are closed at the end."""
        place = self.place
        if self.on_demand is None and self.settings["RLPROF_ON_DEMAND"] != "0":
            serve = on_demand.serve(place.run.path, place.folder.path, place.node, self.journal.note)
            self.on_demand = asyncio.create_task(serve)

    async def start_sync(self, *more: str) -> None:
        place = self.place
        share = max(2.0, self.settings.number("RLPROF_DRAIN_SECONDS") / 2 - 2)  # so that it can still say what stayed behind
        with open(place.folder.logs / "sync.log", "ab") as log:
            self.sync = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rlprof_ops.collect.sync",
                f"--node-dir={place.folder.path}", f"--run-dir={place.run.path}", f"--node={place.node}",
                f"--interval={self.settings['RAY_LOG_SYNC_FREQUENCY']}", f"--deadline={share}", *more,
                env=self.environment(), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        if self._sync_watch is None and not more:
            self._sync_watch = asyncio.create_task(self._keep_syncing())

    async def _keep_syncing(self) -> None:
        """Start a sync that died before the end again, and say so; it goes on where it was."""
        for _ in range(_SYNC_RESTARTS):
            sync = self.sync
            assert sync is not None
            code = await sync.wait()
            self.journal.say(f"node {self.place.node}: sync ended with {code} while the job runs; starting it again")
            await asyncio.sleep(1)
            await self.start_sync()

    # ---- end ---------------------------------------------------------------------------------------------------

    async def close_profilers(self, seconds: float) -> None:
        """Steps 1 and 2 of the drain: close this job's windows, wait for its profilers, recover raw captures."""
        path, job, share = self.place.folder.path, self.place.job, seconds / 4
        if self.on_demand is not None:
            self.on_demand.cancel()
        asked = bool(self.request) or self.settings["RLPROF_ON_DEMAND"] != "0"
        if asked:
            with self.journal.phase("close_windows"):
                await self._bounded(share, drain.close_windows, path, job)
        with self.journal.phase("end_wrapped"):  # without a request too: a trainer may have its own nsight options
            await self._bounded(share, drain.end_wrapped, path, job)
        if not asked:
            return
        with self.journal.phase("wait_profilers"):
            await self._bounded(share, drain.wait_profilers, path, job)
        with self.journal.phase("recover"):
            phase = await self._bounded(share, drain.recover, path, self.place.node)
            if phase is not None:
                self._recovered += phase.done
                self._failed += phase.failed

    async def _bounded(
        self, seconds: float, work: Callable[..., drain.Phase], *args: object, **options: object
    ) -> drain.Phase | None:
        """Run one step of the drain in a thread; a fault or a time-out is said and the drain goes on."""
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

    async def stop_ray(self) -> None:
        place = self.place
        with self.journal.phase("stop_ray"):
            if self.ray is not None:
                await self.ray.stop(timeout_s=10)
            reap = asyncio.to_thread(
                drain.reap, place.job, place.folder.path, exclude=self._ours(), say=self.journal.note
            )
            await self._survived(reap, 15, "reap")

    def _ours(self) -> frozenset[int]:
        """Pids that the reaper leaves alone: the supervisor, its sync, and what else it has started."""
        return frozenset({os.getpid(), os.getppid(), *self.helpers, *([self.sync.pid] if self.sync else [])})

    async def last_sync(self, seconds: float) -> bool:
        """The sync's last pass, once more when that process has died. True when everything came over."""
        if self._sync_watch is not None:
            self._sync_watch.cancel()
        with self.journal.phase("last_sync"):
            if self.sync is not None and self.sync.returncode is None:
                self.sync.terminate()  # its order to make the last pass
            else:
                await self.start_sync("--last")
            code = await self._sync_ends(seconds)
            if code not in (0, EXIT_FAILED, None):
                self.journal.say(f"node {self.place.node}: sync ended with {code}; once more")
                await self.start_sync("--last")
                code = await self._sync_ends(seconds)
        return code == 0

    async def _sync_ends(self, seconds: float) -> int | None:
        """The exit code of the sync: 0 all copied, 1 something not. None when it had to be killed after `seconds`."""
        assert self.sync is not None
        try:
            return await asyncio.wait_for(self.sync.wait(), seconds)
        except asyncio.TimeoutError:
            self.sync.kill()
            await self.sync.wait()
            self.journal.say(f"node {self.place.node}: the last sync was not done within {seconds:.0f} s")
            return None

    async def finish(self, seconds: float) -> None:
        """Steps 3 to 5 of the drain: stop Ray, last sync, the node's record; then the node folder goes, if all was copied."""
        await self.stop_ray()
        clean = await self.last_sync(seconds)
        await self._survived(asyncio.to_thread(self._write_record, clean), 10, "node record")
        place = self.place
        if clean:
            await self._survived(
                asyncio.to_thread(drain.clear, place.folder.path, say=self.journal.note), 30, "clear"
            )
        else:
            self.journal.say(f"node {place.node}: files that could not be copied stay in {place.folder.path}")

    def _write_record(self, clean: bool) -> None:
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
        drain.write_node_record(
            place.folder.path,
            place.run.path,
            place.node,
            facts,
            recovered=self._recovered,
            failed=self._failed,
        )


_PASSED_ON = (
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV",
    "RAY_worker_register_timeout_seconds",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S",
    "OMP_NUM_THREADS",
    "RLPROF_NSYS",
    "RLPROF_ON_DEMAND",
    "RLPROF_METRICS",
)
