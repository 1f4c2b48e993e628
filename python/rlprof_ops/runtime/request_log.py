"""The requests that an engine in this process has finished: one JSON line each, in the node folder.

The engine's threads only put what they know of a request into a queue; a thread of ours makes the rows,
tells from the tokens where each belongs, and writes what is there once a second. A file begins with who
writes it and the names of a row's fields, and ends with a line that says so when it has reached its size.
Rows are lost where more wait than memory should hold; the next line counts them.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rlprof_ops import env_names
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.runtime.conversations import Conversations
from rlprof_ops.runtime.process.event_log import log_once

FOLDER = "requests"  # in the node folder: <pid>.jsonl
MOST_BYTES = 32 << 20  # of a process: about 300,000 requests
_MOST_WAITING = 1 << 16
_ID_LETTERS = 100
_EVERY_S = 1.0
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_json = json.JSONEncoder(separators=(",", ":")).encode


class EngineRequest(NamedTuple):
    """One request: tokens, and Unix nanoseconds; None where the engine does not tell. `finished_ns` is when
    its last token was made, or when it was aborted. The last three are of `conversations`: answers to one
    prompt have one `group`, turns of one sample one `first`.
    """

    id: str
    prompt_tokens: int
    tokens: int
    arrival_ns: int
    queued_ns: int | None
    scheduled_ns: int | None
    first_token_ns: int | None
    finished_ns: int
    preemptions: int | None
    reason: str
    group: int | None = None
    turn: int = 1
    first: str | None = None


class RequestTokens(NamedTuple):
    """What a request was asked and has answered; `images`: hashes of what is in the prompt beside text."""

    prompt: Sequence[int]
    answer: Sequence[int]
    images: Sequence[str] = ()


_Row = Callable[..., tuple[EngineRequest, RequestTokens | None]]


def asked() -> bool:
    """Whether the requests of engines in this process are recorded."""
    return os.environ.get(env_names.ENGINE_REQUESTS) != "0" and bool(os.environ.get(env_names.NODE_DIR))


class RequestLog:
    """The file of one process. `off`: nothing more is taken, since it is full or something went wrong."""

    def __init__(self, engine: str) -> None:
        self.off = False
        self.pid = os.getpid()
        self._engine = engine
        self._path = Path(os.environ[env_names.NODE_DIR], FOLDER, f"{self.pid}.jsonl")
        self._rows: deque[tuple[_Row, tuple[object, ...]]] = deque()
        self._conversations = Conversations()
        self._lost = self._written = 0
        self._writing = threading.Lock()
        OwnThread(self._run).start()
        atexit.register(self.flush)

    def add(self, row: _Row, *arguments: object) -> None:
        """Take what `row` makes a row and its tokens of, on our thread; the caller never waits."""
        if len(self._rows) < _MOST_WAITING:
            self._rows.append((row, arguments))
        else:
            self._lost += 1

    def _run(self) -> None:
        while not self.off:
            time.sleep(_EVERY_S)
            self.flush()

    def flush(self) -> None:
        """Write what was taken until now; never raises."""
        if self.off or os.getpid() != self.pid:
            return
        try:
            with self._writing:  # also at the process's end, while the thread is about to write
                if self._rows:
                    self._append()
        except Exception as error:  # nothing of ours may end an engine's process
            self.off = True
            log_once(f"requests are no longer recorded: {type(error).__name__}: {error}", key="requests")

    def _append(self) -> None:
        lines: list[object] = []
        if not self._written:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            lines.append(self._first_line())
        try:
            while self._rows:
                row, arguments = self._rows.popleft()
                lines.append(self._placed(*row(*arguments)))
        finally:
            self._write(lines)

    def _write(self, lines: list[object]) -> None:
        if self._lost:
            lines.append({"event": "lost", "count": self._lost})
            self._lost = 0
        data = "".join(_json(line) + "\n" for line in lines)
        self._written += len(data)
        if self._written > MOST_BYTES:
            self.off = True
            data += _json({"event": "full", "t_ns": time.time_ns()}) + "\n"
            log_once(
                f"{self._path} is full ({MOST_BYTES >> 20} MiB): later requests are not recorded", "requests"
            )
        with open(os.open(self._path, _APPEND, 0o644), "ab", buffering=0) as file:
            file.write(data.encode())

    def _placed(self, row: EngineRequest, tokens: RequestTokens | None) -> tuple[object, ...]:
        """The row's fields, with its place among the others."""
        name = row.id[:_ID_LETTERS]
        if tokens is None:
            return name, *row[1:]
        place = self._conversations.place(
            name, tokens.prompt, tokens.answer, row.arrival_ns, row.finished_ns, tokens.images
        )
        return name, *row[1 : -len(place)], *place

    def _first_line(self) -> dict[str, object]:
        """Whose requests these are: the worker that it is known as, else its Ray actor's name, else its
        engine's.
        """
        from rlprof_ops.runtime.process.worker_identity import find_identity

        who = find_identity(
            os.environ.get(env_names.WORKER) or _actor() or self._engine, None, None, os.environ
        )
        return {
            "event": "requests",
            "worker": who.worker,
            "rank": who.rank,
            "pid": self.pid,
            "host": who.host,
            "engine": self._engine,
            "fields": EngineRequest._fields,
        }


def _actor() -> str:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().get_actor_name() or "")
