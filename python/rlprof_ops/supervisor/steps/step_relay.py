"""Passes the job's steps from the driver to every node, and "all windows are open" back to it.

The driver's process talks to the supervisor of its own node over a Unix socket in the node folder
(`runtime/step_clock.py`). That one tells the head, the head tells every node over the control channel, and
each node stores the step where its processes read it, opens its windows, and reports. Milliseconds, and no
shared storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlprof_ops.host import foreign
from rlprof_ops.request import ProfileRequest, request_from_json
from rlprof_ops.runtime import trainer_request
from rlprof_ops.runtime.clock_file import SOCKET, ClockFile, ClockState
from rlprof_ops.runtime.on_demand.watcher import CaptureRequest
from rlprof_ops.runtime.step_clock import short_path
from rlprof_ops.supervisor.control_channel import Lost, Message
from rlprof_ops.supervisor.steps.session_windows import Windows
from rlprof_ops.supervisor.steps.step_requests import RequestsCounted, RequestShares


@dataclass(frozen=True)
class StepMessage(Message):
    """What the relays of a job's nodes say to each other."""


@dataclass(frozen=True)
class StepBegan(StepMessage):
    """The driver's step begins, at `t_ns` of the driver's clock; it waits for the windows when `wait`. `log`:
    its output says so, and of the steps before nothing when it `skips`.
    """

    step: int
    t_ns: int
    wait: bool
    log: bool = False
    skips: bool = False


@dataclass(frozen=True)
class StepEnded(StepMessage):
    """The driver's step ended."""

    step: int
    t_ns: int
    log: bool = False


@dataclass(frozen=True)
class PhaseBegan(StepMessage):
    """A phase of the driver's step begins, which windows inside steps count from."""

    step: int
    name: str


@dataclass(frozen=True)
class WindowsOpened(StepMessage):
    """A node has opened the windows that begin with this step."""

    step: int


@dataclass(frozen=True)
class StepGoes(StepMessage):
    """Every node has: the driver need not wait any more."""

    step: int


@dataclass(frozen=True)
class RequestTold(StepMessage):
    """The trainer's own configuration asks for captures; `text` is the request's JSON."""

    text: str


_NOT_PRINTED = "the driver's output, from which the steps are known, says nothing of them one by one"
Send = Callable[[Message], Awaitable[None]]


class StepRelay:
    """One node's part. `tell` sends to the head, or, on the head, to all other nodes; `taken` hears of a
    request of the trainer's own that the job goes by, `told` of the first step that a process told itself:
    from then on its output is not heard.
    """

    def __init__(
        self,
        node_dir: Path,
        node: str,
        windows: Windows,
        tell: Send,
        say: Callable[[str], None],
        taken: Callable[[ProfileRequest], None] = lambda request: None,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self._node_dir = node_dir
        self._node = node
        self._windows = windows
        self._tell = tell
        self._say = say
        self._taken = taken
        self._told = told
        self._told_by_process = False
        self._requests = RequestShares()
        self._others: Callable[[], Iterable[str]] | None = None
        self._state = ClockState()
        self._file: ClockFile | None = None
        self._server: asyncio.Server | None = None
        self._drivers: set[asyncio.StreamWriter] = set()
        self._waiting: dict[int, set[str]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._heard: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()

    @property
    def step(self) -> int:
        """The step begun last; 0 before the first."""
        return self._state.step

    async def listen(self, others: Callable[[], Iterable[str]] | None = None) -> None:
        """Take steps from processes of this node, from where the clock and the windows in the node folder
        stand. `others`, on the head alone: the nodes whose windows count.
        """
        self._others = others
        self._file = ClockFile(self._node_dir, write=True, keep=True)
        self._state = self._file.read()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._node_dir / SOCKET)
        with short_path(self._node_dir, SOCKET) as path:
            listener.bind(path)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)
        await self._windows.resume(self._state.step, self._state.running)
        self._do(self._in_order())

    def on_request(self, request: CaptureRequest) -> None:
        """A capture on demand: of seconds at once, of steps with the next step, which then waits for it."""
        if request.next_steps is not None:
            self._windows.want(request)
            self._store(replace(self._state, asked=self._state.asked + 1))
        else:
            self._do(self._windows.take_seconds(request))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        for writer in list(self._drivers):
            writer.close()

    # ---- from this node's processes

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._drivers.add(writer)
        try:
            while line := await reader.readline():
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    self._said(foreign.an_object(foreign.parse(line)), writer)
        except (OSError, ValueError):
            pass
        finally:
            self._drivers.discard(writer)
            writer.close()

    def _said(self, said: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if "begin" in said:
            flags = (bool(said.get(name)) for name in ("wait", "log", "skips"))
            message: Message = StepBegan(int(said["begin"]), int(said["t_ns"]), *flags)
        elif "end" in said:
            message = StepEnded(int(said["end"]), int(said["t_ns"]), bool(said.get("log")))
        elif "phase" in said:
            message = PhaseBegan(int(said["step"]), str(said["phase"]))
        elif "came" in said:
            message = RequestsCounted(*(int(said[name]) for name in ("pid", "came", "done", "longest")))
        elif "request" in said:
            message = RequestTold(str(said["request"]))
        elif "window" in said:
            self._do(self._window(str(said["session"]), str(said["window"]), writer))
            return
        else:
            return
        self.receive(self._node, message)

    async def _window(self, session: str, what: str, writer: asyncio.StreamWriter) -> None:
        done = await self._windows.ask(session, what)
        if done:
            await _answer(writer, {"window": what})

    # ---- between the nodes

    def receive(self, node: str, message: Message) -> None:
        """Take a message of `node`, which may be this one; they are dealt with in the order they come in."""
        self._heard.put_nowait((node, message))

    async def _in_order(self) -> None:
        while True:
            node, message = await self._heard.get()
            try:
                await self._deal(node, message)
            except Exception as error:  # one message must not end the clock
                self._say(f"step clock: {type(error).__name__}: {error}")

    async def _deal(self, node: str, message: Message) -> None:
        if self._others is None:
            await (self._tell(message) if node == self._node else self.apply(message))
        elif isinstance(message, Lost):
            for step in list(self._waiting):
                await self._opened(step, node)
        elif isinstance(message, WindowsOpened):
            await self._opened(message.step, node)
        elif self._is_overruled(message):
            return
        elif isinstance(message, RequestsCounted):
            for name in self._requests.take(node, message, self._windows.parts):
                await self._deal(node, PhaseBegan(self.step, name))
        elif isinstance(message, (StepBegan, PhaseBegan, StepEnded, RequestTold)):
            if isinstance(message, StepBegan) and message.wait:
                self._waiting[message.step] = {self._node, *self._others()}
            if isinstance(message, StepBegan):
                self._requests.begin()
            elif isinstance(message, StepEnded):
                self._requests.end()
            await self._tell(message)
            await self.apply(message)

    def _is_overruled(self, message: Message) -> bool:
        """Whether a step comes from the driver's output though a process tells the job's steps."""
        if not isinstance(message, (StepBegan, StepEnded)):
            return False
        if not message.log and not self._told_by_process:
            self._told_by_process = True
            self._told()
        return message.log and self._told_by_process

    async def apply(self, message: Message) -> None:
        """What every node does with a message that comes from the head."""
        if isinstance(message, StepBegan):
            asked, since_ns = self._state.asked, time.monotonic_ns()
            self._store(ClockState(message.step, message.t_ns, True, asked, since_ns))
            self._do(self._open(message))
        elif isinstance(message, PhaseBegan):
            self._windows.phase(message.step, message.name)
            if self._state.step == message.step and message.name not in self._state.phases:
                phases = {**self._state.phases, message.name: time.monotonic_ns()}
                self._store(replace(self._state, phases=phases))
        elif isinstance(message, StepEnded):
            if self._state.step == message.step:
                self._store(replace(self._state, running=False))
            self._windows.end(message.step)
        elif isinstance(message, RequestTold):
            await self._take(message.text)
        elif isinstance(message, StepGoes):
            for writer in list(self._drivers):
                await _answer(writer, {"go": message.step})

    async def _take(self, text: str) -> None:
        """Go by a trainer's own request where the job has none, and tell the driver that it may go on."""
        request = request_from_json(text, "the trainer's configuration")
        if self._windows.take(request):
            self._taken(request)
            await asyncio.to_thread(trainer_request.store, self._node_dir, text)
            self._say(
                "the trainer's own configuration asks for captures: its windows are sessions of this job"
            )
        for writer in list(self._drivers):
            await _answer(writer, {"request": True})

    async def _open(self, began: StepBegan) -> None:
        if began.skips:
            self._windows.gap(_NOT_PRINTED)
        try:
            await self._windows.begin(began.step)
        finally:
            if began.wait:
                if self._others is None:
                    await self._tell(WindowsOpened(began.step))
                else:
                    await self._opened(began.step, self._node)

    async def _opened(self, step: int, node: str) -> None:
        left = self._waiting.get(step)
        if left is None:
            return
        left.discard(node)
        if not left:
            del self._waiting[step]
            await self._tell(StepGoes(step))
            await self.apply(StepGoes(step))

    def _store(self, state: ClockState) -> None:
        self._state = state
        if self._file is not None:
            self._file.store(state)

    def _do(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._say(f"step clock: {type(error).__name__}: {error}")


async def _answer(writer: asyncio.StreamWriter, values: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.write(json.dumps(values).encode() + b"\n")
        await writer.drain()
