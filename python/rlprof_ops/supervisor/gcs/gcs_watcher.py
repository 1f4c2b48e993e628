"""The process that asks Ray's GCS which nodes are alive, as its supervisor sees it; started again when it
dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

_RESTARTS = 5


class GcsWatcher:
    """`rlprof_ops.supervisor.gcs.gcs_probe` beside the start of Ray; see there for its answers."""

    def __init__(
        self, address: str, env: Mapping[str, str], helpers: set[int], say: Callable[[str], None]
    ) -> None:
        """`address`: IP:PORT of the GCS; the process's pid joins `helpers`, so that nobody takes it for a
        stray.
        """
        self._address, self._env, self._helpers, self._say = address, dict(env), helpers, say
        self._process: asyncio.subprocess.Process | None = None
        self._restarts = 0

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rlprof_ops.supervisor.gcs.gcs_probe",
            self._address,
            env=self._env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._helpers.add(self._process.pid)

    async def answers(self, deadline: float) -> tuple[str | None, list[str] | None]:
        """The next answer: (why the plugin does not load, None) or (None, addresses that are alive).

        `deadline` is in the loop's time. Raises TimeoutError when it comes first or the process keeps dying.
        """
        while True:
            answer = await asyncio.wait_for(
                self._line(), max(0.1, deadline - asyncio.get_running_loop().time())
            )
            if isinstance(answer, list):
                return None, answer
            if answer is not None and answer.get("plugin") is not None:
                return str(answer["plugin"]), None

    async def _line(self) -> Any:
        """One line of the process; None when it had to be started again."""
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = await self._process.wait()
        if self._restarts == _RESTARTS:
            raise asyncio.TimeoutError
        self._restarts += 1
        self._say(f"the process that asks which nodes are up ended with {code}; starting it again")
        await self.start()
        return None

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


async def watch_resources(
    address: str, env: Mapping[str, str], helpers: set[int], found: Callable[[str], None]
) -> None:
    """Until cancelled: call `found` with what the job waits for, each time that this changes; see
    `rlprof_ops.supervisor.gcs.resource_probe`. `address`: IP:PORT of the GCS; its pid joins `helpers`.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rlprof_ops.supervisor.gcs.resource_probe", address, env=dict(env),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    helpers.add(process.pid)
    assert process.stdout is not None
    try:
        while line := await process.stdout.readline():
            found(str(json.loads(line)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())
