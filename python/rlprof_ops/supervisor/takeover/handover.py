"""What a supervisor leaves in its node folder for one that may have to take over, and the processes that this
one finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlprof_ops.errors import EXIT_FAILED, RlprofError
from rlprof_ops.host import atomic, foreign, processes
from rlprof_ops.supervisor.takeover.reins import Reins

NAME = "handover.json"
REJOIN_SECONDS = 30.0  # in which a node finds the head's new supervisor
_HELPERS = ("rlprof_ops.collect.sync", "rlprof_ops.recorder", "rlprof_ops.analyze.distil")
_PROBES = "rlprof_ops.supervisor.gcs."
_HELPER_SECONDS = 2.0  # enough for the recorder to keep what it has; a sync loses nothing by a kill
_ALIVE_S = 1.0  # between two looks where the kernel has no pidfd


@dataclass(frozen=True)
class Handover:
    """`ray` and `driver`: (pid, start time in clock ticks since boot) of the processes; None: no driver.
    `nodes`: the other nodes that serve. `nodes_up`: what Ray has counted. `phases_s`: what the start took.
    """

    ray: tuple[int, int]
    driver: tuple[int, int] | None = None
    started_ns: int = 0
    nodes: tuple[str, ...] = ()
    nodes_up: int | None = None
    phases_s: dict[str, float] = field(default_factory=dict)

    def leave(self, node_dir: Path) -> None:
        """Raises OSError."""
        atomic.write(node_dir / NAME, json.dumps(asdict(self)), mode=0o600)

    @classmethod
    def find(cls, node_dir: Path) -> Handover:
        """Raises RlprofError where nothing is left that can be taken over."""
        try:
            values: dict[str, Any] = foreign.read(node_dir / NAME)
            return cls(
                _place(values["ray"]),
                _place(values["driver"]) if values["driver"] else None,
                int(values["started_ns"]),
                tuple(map(str, values["nodes"])),
                values["nodes_up"],
                dict(values["phases_s"]),
            )
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise RlprofError(f"{node_dir / NAME}: nothing is there to take over: {error}") from error


def _place(told: Sequence[Any]) -> tuple[int, int]:
    return int(told[0]), int(told[1])


def place_of(pid: int) -> tuple[int, int]:
    """A process as `Handover` names it; its start is 0 where it has ended, which is no process's."""
    return pid, processes.start_time(pid) or 0


def end_helpers(job: str, node_dir: Path) -> int:
    """End what the supervisor before ran beside the training, which ends without it anyway: two syncs or two
    recorders of a node would write the same files. How many there were.
    """
    found = [process for process in processes.of_job(job, node_dir) if _is_helper(process)]
    processes.end(found, grace_s=_HELPER_SECONDS)
    return len(found)


def _is_helper(process: processes.Process) -> bool:
    module = process.argv[2] if process.argv[1:2] == ("-m",) and len(process.argv) > 2 else ""
    return module in _HELPERS or module.startswith(_PROBES)


class Adopted:
    """A process that is not this one's child, with the face of `asyncio.subprocess.Process`: of the
    supervisor before, or started by the keeper.
    """

    def __init__(self, place: tuple[int, int], reins: Reins) -> None:
        self.pid, started = place
        self.returncode: int | None = None
        self._process = processes.Process(self.pid, started, "", ())
        self._reins = reins
        self._ended = asyncio.ensure_future(self._watch())

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError when it is gone."""
        if self.returncode is not None or not self._process.alive():
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _watch(self) -> int:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(self.pid)
            try:
                await self._readable(handle)
            finally:
                os.close(handle)
        while self._process.alive():
            await asyncio.sleep(_ALIVE_S)
        code = await self._reins.exit_code(self.pid)
        self.returncode = EXIT_FAILED if code is None else code
        return self.returncode

    async def _readable(self, handle: int) -> None:
        if not self._process.alive():  # another one has its number by now
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(handle, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(handle)
