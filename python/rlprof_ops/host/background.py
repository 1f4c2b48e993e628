"""Work that may hang, such as a call to shared storage, on threads that keep nobody waiting.

A thread in a call to a dead file system cannot be ended. So it is a daemon: neither the event loop nor the
process's end waits for it, which the threads of `asyncio.to_thread` make both do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rlprof_ops.host import atomic
from rlprof_ops.host.contained_dir import ContainedDir, PinnedDir
from rlprof_ops.words import limit

_Result = TypeVar("_Result")
_LOOK_SECONDS = 5.0  # between two looks at the name of a folder that is written to


async def in_background(work: Callable[..., _Result], *args: Any, seconds: float, **options: Any) -> _Result:
    """What `work` gives, from a thread of its own. Raises what it raises, TimeoutError after `seconds`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: object) -> None:
        if not future.done():
            set_it(value)

    def run() -> None:
        try:
            done = partial(settle, future.set_result, work(*args, **options))
        except BaseException as error:
            done = partial(settle, future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done)

    threading.Thread(target=run, name=getattr(work, "__name__", "work"), daemon=True).start()
    try:
        return await asyncio.wait_for(future, seconds)
    except asyncio.TimeoutError:
        raise TimeoutError(f"not done within {limit(seconds)}") from None


def in_time(work: Callable[..., _Result], *args: Any, seconds: float) -> _Result:
    """The same for who has no event loop. Raises what `work` raises, TimeoutError after `seconds`."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=getattr(work, "__name__", "work"), daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeoutError(f"not done within {limit(seconds)}")
    return future.result()


class BackgroundWriter:
    """Writes files in order on one thread. Callers never wait, unless they ask for it with `flush`.

    A whole file that is put twice before its turn is written once; errors are told to `put`'s `then`. With
    `within`, every path lies below that folder and is written only while it is the right one.
    """

    def __init__(self, within: PinnedDir | None = None) -> None:
        self._within = within
        self._held: ContainedDir | None = None
        self._look_at = 0.0
        self._changed = threading.Condition()
        self._appends: dict[Path, bytearray] = {}
        self._files: dict[Path, tuple[bytes, Callable[[OSError | None], None]]] = {}
        self._order: deque[Path] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None

    def put(self, path: Path, data: bytes, then: Callable[[OSError | None], None]) -> None:
        """Write the whole file atomically; `then` gets the error, or None, on the writer's thread."""
        with self._changed:
            self._files[path] = (data, then)
            self._enqueue(path)

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end of a file; what the storage does not take is dropped."""
        with self._changed:
            self._appends.setdefault(path, bytearray()).extend(data)
            self._enqueue(path)

    def flush(self, seconds: float) -> bool:
        """Wait until all is written; False when that takes longer than `seconds`."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._busy or self._order:
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return False
        return True

    def _enqueue(self, path: Path) -> None:
        if path not in self._order:
            self._order.append(path)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shared storage", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._order:
                    self._changed.wait()
                path = self._order.popleft()
                added, whole = self._appends.pop(path, None), self._files.pop(path, None)
                self._busy = True
            if added is not None:
                self._error_of(_append, path, bytes(added))
            if whole is not None:
                data, then = whole
                then(self._error_of(atomic.write, path, data))

    def _error_of(self, write: Callable[..., None], path: Path, data: bytes) -> OSError | None:
        try:
            if self._within is None:
                write(path, data)
            else:
                write(path.relative_to(self._within.path), data, dir_fd=self._hold(self._within))
        except OSError as error:
            self._release()
            return error
        return None

    def _hold(self, within: PinnedDir) -> int:
        """A descriptor of the folder. It stays open, since a look at its name costs the storage two calls."""
        if self._held is None or time.monotonic() >= self._look_at:
            self._release()
            self._held = within.open()
            self._look_at = time.monotonic() + _LOOK_SECONDS
        return self._held.fd

    def _release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def _append(path: Path, data: bytes, *, dir_fd: int | None = None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666, dir_fd=dir_fd), "ab", buffering=0) as file:
        file.write(data)
