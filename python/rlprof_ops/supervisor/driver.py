"""The trainer's driver: COMMAND, run by bash on the head node, its output in logs/driver.log.

What its exit status makes of the job: `why_job_ends` of job/end_cause.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlprof_ops import backends
from rlprof_ops.errors import EXIT_FAILED, RlprofError
from rlprof_ops.job.end_cause import exit_status
from rlprof_ops.request import ProfileRequest
from rlprof_ops.runtime.process.worker_identity import DRIVER, DRIVERS
from rlprof_ops.supervisor.keeper import START_DRIVER
from rlprof_ops.supervisor.node.node_process import NodeProcess
from rlprof_ops.supervisor.node.node_state import NodeState

_START_SECONDS, _CODE_SECONDS, _LOOK_S = 30.0, 5.0, 0.02


def session_words(request: ProfileRequest, python: str) -> list[str]:
    """What runs COMMAND in an nsys session, where the request selects the driver under any of its names."""
    captures = request.captures if request else ()
    specs = [spec for spec in captures if spec and backends.from_outside(spec.backend)]
    named = [name for name in DRIVERS if any(spec.matches(name, 0) for spec in specs)]
    written = (name for name in named if any(name in spec.workers for spec in specs))
    name = next(written, named[0] if named else None)
    if name is not None and request.steps_from is not None:
        name = DRIVER  # no adapter in it will say that it is a `controller`
    return [] if name is None else [python, "-m", "rlprof_ops", "wrap", "--worker", name, "--rank", "0", "--"]


def variables_of(request: ProfileRequest) -> dict[str, str]:
    """The `env` of the captures that select the driver under any of its names, whatever takes them."""
    specs = [spec for name in DRIVERS for spec in request.for_worker(name, 0)]
    return {name: value for spec in specs for name, value in spec.env.items()}


class Driver:
    """COMMAND as a process group of its own, the keeper's child: it outlives us, as does its exit code."""

    def __init__(self, process: NodeProcess, state: NodeState) -> None:
        self.process, self._state = process, state

    @classmethod
    async def start(
        cls,
        command: str,
        script: Path,
        log: Path,
        env: Mapping[str, str],
        cwd: Path,
        state: NodeState,
        wrap: Sequence[str] = (),
    ) -> Driver:
        """Have `command`, an arbitrary piece of bash, run from a file of mode 0600; `wrap` are words before
        `bash`. Raises RlprofError where it does not start.

        In a file it is quoted by nobody, and a secret written into it does not show in the list of processes.
        """
        argv = [*wrap, "bash", str(script)]
        try:
            script.unlink(missing_ok=True)
            with open(
                os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
            ) as file:
                file.write(command + "\n")
            state.request_driver({"argv": argv, "env": dict(env), "cwd": str(cwd), "log": str(log)})
        except OSError as error:
            raise RlprofError(f"the driver did not start: {error}") from error
        if os.getppid() == state.keeper:  # else it is gone, and we are told to end
            os.kill(state.keeper, START_DRIVER)
        told = await _look(state, "pid", "failed", seconds=_START_SECONDS)
        if "pid" not in told:
            raise RlprofError(f"the driver did not start: {told.get('failed', 'the keeper does not answer')}")
        return cls(NodeProcess(told["pid"], told["started"]), state)

    @classmethod
    def find(cls, state: NodeState) -> Driver | None:
        """The one that a supervisor before has had started."""
        told = state.driver.read()
        return cls(NodeProcess(told["pid"], told["started"]), state) if "pid" in told else None

    async def wait(self) -> int:
        """Its exit status; that of a failure where nobody knows it."""
        await self.process.gone.wait()
        told = await _look(self._state, "code", seconds=_CODE_SECONDS)
        return exit_status(told.get("code", EXIT_FAILED))

    async def end(self, grace_s: float) -> None:
        """SIGTERM to the driver's process group, SIGKILL after `grace_s` seconds."""
        await self.process.end(grace_s, group=True)


async def _look(state: NodeState, *names: str, seconds: float) -> dict[str, Any]:
    """What the keeper has written of the driver, once one of `names` is in it."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        told = state.driver.read()
        if any(name in told for name in names) or loop.time() > until:
            return told
        await asyncio.sleep(_LOOK_S)
