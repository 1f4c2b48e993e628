"""Copies bytes between two descriptors: digest on the way, holes kept, bandwidth limited, stoppable."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

CHUNK = 1 << 20
_PIPELINE_FROM = 16 << 20  # below this a second thread costs more than it saves
_ZEROS = bytes(CHUNK)


class Stopped(Exception):
    """The copy was told to stop (deadline or shutdown)."""


@dataclass(frozen=True)
class Copied:
    """What went over: the number of bytes and their SHA-256 (hex)."""

    size_bytes: int
    sha256: str


class Limiter:
    """A byte budget per second that several threads share; 0 is no limit."""

    def __init__(self, bytes_per_s: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock, self._sleep = clock, sleep
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, size: int, stop: Callable[[], bool] = lambda: False) -> None:
        """Wait until `size` bytes may go; raises `Stopped` when `stop()` turns true meanwhile."""
        if self.bytes_per_s <= 0:
            return
        with self._lock:
            now = self._clock()
            start = max(now, self._free_at)
            self._free_at = start + size / self.bytes_per_s
        while (left := start - self._clock()) > 0:
            if stop():
                raise Stopped
            self._sleep(min(left, 0.2))


def copy(source: int, target: int, *, size_hint: int, length: int | None = None, sparse: bool = False, limiter: Limiter | None = None,
         stop: Callable[[], bool] = lambda: False) -> Copied:
    """Copy from `source`'s position to its end, or `length` bytes of it, into `target`.

    `size_hint` (bytes) chooses how; a source that grows or shrinks is the caller's to notice. With `sparse` blocks of
    zeros become holes. Raises OSError as the kernel gives it, and `Stopped`.
    """
    if size_hint < _PIPELINE_FROM:
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(min(CHUNK, max(size_hint, 4096))))
        size = _pump(source, target, length, sparse, limiter, stop, digest.update, lambda: buffer)
        return Copied(size, digest.hexdigest())
    with _HashThread() as hasher:
        size = _pump(source, target, length, sparse, limiter, stop, hasher.add, hasher.buffer)
    return Copied(size, hasher.hexdigest())


def digest_of(fd: int, stop: Callable[[], bool] = lambda: False) -> Copied:
    """Size and SHA-256 of what can be read from `fd`'s position on."""
    digest = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(CHUNK))
    while count := os.readv(fd, [buffer]):
        if stop():
            raise Stopped
        digest.update(buffer[:count])
        size += count
    return Copied(size, digest.hexdigest())


def _pump(source: int, target: int, length: int | None, sparse: bool, limiter: Limiter | None, stop: Callable[[], bool],
          add: Callable[[memoryview], None], buffer_of: Callable[[], memoryview]) -> int:
    size = 0
    while True:
        if stop():
            raise Stopped
        buffer = buffer_of()
        if length is not None:
            buffer = buffer[:length - size]
        count = os.readv(source, [buffer]) if buffer else 0
        if count == 0:
            break
        block = buffer[:count]
        if limiter is not None:
            limiter.take(count, stop)
        if sparse and block == _ZEROS[:count]:
            os.lseek(target, count, os.SEEK_CUR)
        else:
            _write_all(target, block)
        add(block)
        size += count
    if sparse:
        os.ftruncate(target, size)
    return size


def _write_all(fd: int, block: memoryview) -> None:
    while block:
        block = block[os.write(fd, block):]


class _HashThread:
    """Hashes blocks while the next ones are read and written; four buffers go round."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        for _ in range(4):
            self._free.put(memoryview(bytearray(CHUNK)))
        self._thread = threading.Thread(target=self._run, name="sha256", daemon=True)

    def __enter__(self) -> _HashThread:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._full.put(None)
        self._thread.join()

    def buffer(self) -> memoryview:
        return self._free.get()

    def add(self, block: memoryview) -> None:
        self._full.put(block)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def _run(self) -> None:
        while (block := self._full.get()) is not None:
            self._digest.update(block)
            whole = block.obj
            self._free.put(memoryview(whole))
