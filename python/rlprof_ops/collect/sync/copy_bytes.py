"""Copies bytes between two descriptors: digest on the way, holes kept, bandwidth limited, stoppable."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

CHUNK = 1 << 20
LARGE = 16 << 20  # from here on a second thread for the digest costs less than it saves
_KERNEL_CHUNK = 8 << 20
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

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
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


def copy(
    source: int,
    target: int,
    *,
    size_hint: int,
    length: int | None = None,
    sparse: bool = False,
    limiter: Limiter | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Copied:
    """Copy from `source`'s position to its end, or `length` bytes of it, into `target`; the digest is of what
    was written.

    `size_hint` (bytes) sizes the buffer; a source that grows or shrinks is the caller's to notice. With
    `sparse` blocks of zeros become holes. Raises OSError as the kernel gives it, and `Stopped`.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(CHUNK, max(size_hint, 4096))))
    size = 0
    while True:
        if stop():
            raise Stopped
        wanted = buffer if length is None else buffer[: length - size]
        count = os.readv(source, [wanted]) if wanted else 0
        if count == 0:
            break
        block = buffer[:count]
        if limiter is not None:
            limiter.take(count, stop)
        if sparse and block == _ZEROS[:count]:
            os.lseek(target, count, os.SEEK_CUR)
        else:
            write_all(target, block)
        digest.update(block)
        size += count
    if sparse:
        os.ftruncate(target, size)
    return Copied(size, digest.hexdigest())


def copy_in_kernel(
    source: int, target: int, *, limiter: Limiter | None = None, stop: Callable[[], bool] = lambda: False
) -> int:
    """Copy from `source`'s position to its end without passing through this process; returns the bytes. As
    fast as `cp`.

    Raises:
        Stopped: the sync was told to end.
    """
    size = 0
    while True:
        if stop():
            raise Stopped
        count = os.sendfile(target, source, None, _KERNEL_CHUNK)
        if count == 0:
            return size
        size += count
        if limiter is not None:
            limiter.take(count, stop)


class Digesting:
    """The digest of a whole file, taken by a thread of its own while others copy it; `result()` waits for
    it.
    """

    def __init__(self, fd: int, stop: Callable[[], bool] = lambda: False) -> None:
        self._fd, self._stop = os.dup(fd), stop
        self._copied: Copied | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sha256", daemon=True)
        self._thread.start()

    def result(self) -> Copied:
        """Raises what reading raised: OSError, `Stopped`."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._copied is not None
        return self._copied

    def _run(self) -> None:
        try:
            self._copied = digest_of(self._fd, self._stop)
        except BaseException as error:
            self._error = error
        finally:
            os.close(self._fd)


def digest_of(fd: int, stop: Callable[[], bool] = lambda: False) -> Copied:
    """Size and SHA-256 of a whole file, wherever `fd` stands in it: a copy may move it meanwhile.

    Raises:
        Stopped: the sync was told to end.
    """
    digest = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(CHUNK))
    while count := os.preadv(fd, [buffer], size):
        if stop():
            raise Stopped
        digest.update(buffer[:count])
        size += count
    return Copied(size, digest.hexdigest())


def write_all(fd: int, block: memoryview) -> None:
    """Write all of `block`. Raises OSError."""
    while block:
        block = block[os.write(fd, block) :]
