"""The recorder process of a node, as its supervisor runs it: started again when it dies, heard, never waited
for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rlprof_ops.host import foreign
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.supervisor.control_channel import Message, register

_LINE_LIMIT = 1 << 20
_MOST_UNSENT = 8 << 20  # of news that the recorder has not taken; more are dropped
_QUICK_RESTARTS = 10
_END_SECONDS = 8.0


@register
@dataclass(frozen=True)
class Recorded(Message):
    """A node's recorder has news for the head's; `news` is its line."""

    news: str


class Recording:
    """`on_told` gets what the recorder says: `{"news": …}`, `{"finding": …}`, `{"capture": …}`."""

    def __init__(
        self,
        place: NodeContext,
        environment: Callable[[], dict[str, str]],
        say: Callable[[str], None],
        on_told: Callable[[dict[str, Any]], Awaitable[None]],
        helpers: set[int],
    ) -> None:
        """`helpers`: pids that the drain leaves alone."""
        self._place, self._environment, self._say, self._on_told = place, environment, say, on_told
        self._helpers = helpers
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        self._watch = asyncio.create_task(self._keep_recording())

    def hear(self, news: str) -> None:
        """Another node's news, for the head's recorder."""
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            return
        with contextlib.suppress(OSError, RuntimeError):
            if process.stdin.transport.get_write_buffer_size() < _MOST_UNSENT:
                process.stdin.write(news.encode() + b"\n")

    async def end(self) -> None:
        """Have it keep what it has, before the last sync."""
        if self._watch is not None:
            self._watch.cancel()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _keep_recording(self) -> None:
        for number in itertools.count():
            try:
                code = await self._run()
            except OSError as error:
                self._say(f"node {self._place.node}: no recorder: {error}")
                return
            if number == _QUICK_RESTARTS:
                self._say(
                    f"node {self._place.node}: the recorder ended {number + 1} times, lastly with {code};"
                    " this node is not recorded any more (logs/recorder.log)"
                )
                return
            self._say(f"node {self._place.node}: the recorder ended with {code}; starting it again")
            await asyncio.sleep(1)

    async def _run(self) -> int:
        place = self._place
        argv = [
            sys.executable,
            "-m",
            "rlprof_ops.recorder",
            f"--node-dir={place.folder.path}",
            f"--node={place.node}",
            f"--nodes={' '.join(place.nodes)}",
        ]
        if place.is_head:
            argv += [f"--run-dir={place.run.path}", f"--job={place.job}"]
        with open(place.folder.logs / "recorder.log", "ab") as log:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=self._environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                limit=_LINE_LIMIT,
            )
        self._process = process
        self._helpers.add(process.pid)
        assert process.stdout is not None
        while line := await _line(process.stdout):
            for told in foreign.rows(line):
                with contextlib.suppress(ValueError):
                    await self._on_told(told)
        code = await process.wait()
        self._helpers.discard(process.pid)
        return code


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, empty at the end; one that is too long is left out."""
    while True:
        try:
            return await stream.readline()
        except ValueError:
            continue
