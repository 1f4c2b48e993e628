"""The process that reads a node's finished reports beside the training (`analyze/distil`), as its supervisor
runs it: started once, never waited for, gone at the drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable

from rlprof_ops.job.node_context import NodeContext


class Distilling:
    """`environment` gives what every process of the job gets; `helpers`: pids that the drain leaves alone,
    where this one is as long as Ray is only being tried.
    """

    def __init__(
        self,
        place: NodeContext,
        environment: Callable[[], dict[str, str]],
        say: Callable[[str], None],
        helpers: set[int],
    ) -> None:
        self._place, self._environment, self._say, self._helpers = place, environment, say, helpers
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, memory_mib: int) -> None:
        place = self._place
        argv = [
            sys.executable,
            "-m",
            "rlprof_ops.analyze.distil",
            f"--node-dir={place.folder.path}",
            f"--memory-mib={memory_mib}",
        ]
        try:
            with open(place.folder.logs / "distil.log", "ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *argv,
                    env=self._environment(),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            self._say(f"node {place.node}: no report is distilled: {error}")
            return
        self._helpers.add(self._process.pid)

    def end(self) -> None:
        """Have it end what it does, at once; nobody waits, and what is left of it the drain ends."""
        process = self._process
        if process is None:
            return
        self._helpers.discard(process.pid)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
