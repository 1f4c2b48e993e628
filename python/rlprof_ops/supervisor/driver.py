"""The trainer's driver: COMMAND, run by bash on the head node, its output in logs/driver.log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlprof_ops.request import ProfileRequest
from rlprof_ops.runtime.process.worker_identity import DRIVERS
from rlprof_ops.supervisor.takeover.handover import Adopted, place_of
from rlprof_ops.supervisor.takeover.reins import Reins
from rlprof_ops.supervisor.whole_job.exit_code import exit_status


def session_words(request: ProfileRequest, python: str) -> list[str]:
    """What runs COMMAND in an nsys session, where the request selects the driver under any of its names."""
    specs = [spec for spec in request.captures if spec.backend == "nsight" and spec] if request else []
    named = (name for name in DRIVERS if any(spec.matches(name, 0) for spec in specs))
    name = next(named, None)
    return [] if name is None else [python, "-m", "rlprof_ops", "wrap", "--worker", name, "--rank", "0", "--"]


class Driver:
    """COMMAND as a process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process | Adopted) -> None:
        self.process = process

    @classmethod
    async def start(
        cls,
        command: str,
        script: Path,
        log: Path,
        env: Mapping[str, str],
        cwd: Path,
        wrap: Sequence[str] = (),
        reins: Reins | None = None,
    ) -> Driver:
        """Run `command`, an arbitrary piece of bash, from a file of mode 0600; `wrap` are words before
        `bash`. The keeper starts it, where there is one: it then outlives us, and its exit code with it.

        In a file it is quoted by nobody, and a secret written into it does not show in the list of processes.
        """
        script.unlink(missing_ok=True)
        with open(
            os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(command + "\n")
        argv = [*wrap, "bash", str(script)]
        if reins is not None and reins.link is not None:
            pid = await reins.start(argv, env, cwd, log)
            return cls(Adopted(place_of(pid), reins))
        with open(log, "ab") as output:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(env),
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process)

    async def wait(self) -> int:
        return exit_status(await self.process.wait())

    async def end(self, grace_s: float) -> None:
        """SIGTERM to the driver's process group, SIGKILL after `grace_s` seconds."""
        for signal_number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            if self.process.returncode is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal_number)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.process.wait(), patience)
