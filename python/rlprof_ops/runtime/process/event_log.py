"""What this process tells the collector: one JSON line an event, and its last step in 8 bytes that survive
a kill.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rlprof_ops.host.log_line import log as log
from rlprof_ops.host.log_line import log_once as log_once

if TYPE_CHECKING:
    from rlprof_ops.backends.contract import Spec

ENGINE_WORKER = "engine_worker"  # a child of a server says which part of its engine it is
SAMPLES = "samples"  # with which versions of the weights the samples of a batch were made
_INT64 = struct.Struct("<q")


class Registered(Protocol):
    """Who a process is: its identity, or the session that its supervisor opens windows of."""

    @property
    def worker(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int | None: ...
    @property
    def pid(self) -> int: ...
    @property
    def host(self) -> str: ...


class EventLog:
    """Appends events to one file. A disk that fails costs one log line, never an exception.

    A file that somebody deletes begins again with its first line, which says whose events these are.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._broken = False
        self._first = b""

    def write(self, event: str, **fields: object) -> None:
        line = (
            json.dumps({"event": event, "t_ns": time.time_ns(), **fields}, ensure_ascii=False, default=str)
            + "\n"
        )
        try:
            self._append(line.encode("utf-8", "backslashreplace"))
        except OSError as error:
            if not self._broken:
                log(
                    f"cannot write {self.path}: {error.strerror or error}; the manifest will not know why a"
                    " capture is missing"
                )
            self._broken = True

    def registered(self, who: Registered, backends: Iterable[str], **more: object) -> None:
        """The first line: whose events these are, and what it may record."""
        self.write(
            "registered",
            worker=who.worker,
            rank=who.rank,
            world_size=who.world_size,
            pid=who.pid,
            host=who.host,
            backends=sorted(set(backends)),
            **more,
        )

    def failed(self, spec: Spec, reason: str) -> None:
        """No window of a capture can be taken in this process."""
        for window in spec.windows():
            steps = [window.start, window.stop]
            self.write("failed", backend=spec.backend, steps=steps, phase=None, reason=reason)

    def _append(self, data: bytes) -> None:
        # One write of a whole line to an append-only descriptor: lines of threads never mix.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, flags | os.O_CREAT, 0o644)
            self._first, data = self._first or data, self._first + data
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


class StepFile:
    """The last step begun, in a mapped file: storing it costs no system call, and the kernel keeps it when
    we die.
    """

    def __init__(self, path: Path | None) -> None:
        """`path` None: a file that is not there, for a process that has nothing to tell."""
        self._map: mmap.mmap | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                # Written, not only sized: a mapped hole on a full disk would kill us with SIGBUS.
                os.write(descriptor, _INT64.pack(0))
                self._map = mmap.mmap(descriptor, _INT64.size)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            log(f"cannot write {path}: {error}; a killed process will not tell its last step")

    def store(self, step: int) -> None:
        if self._map is not None:
            _INT64.pack_into(self._map, 0, step)
