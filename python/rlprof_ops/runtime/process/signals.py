"""The ends of a process: SIGTERM, interpreter exit, and the fork that must not end what is its parent's."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    Handler = Callable[[int, FrameType | None], object] | int | None


class Closable(Protocol):
    """What has to be closed before its process ends."""

    def close(self) -> None: ...


class Forgetful(Protocol):
    """What a forked child must let go."""

    def _forget(self) -> None: ...


class Hook:
    """One installed action; `remove` takes it back unless somebody has put another handler on top.

    `action` returns False to hold the signal back; it then calls `deliver` when it is ready.
    """

    def __init__(self, action: Callable[[], bool]) -> None:
        self._action: Callable[[], bool] | None = action
        self._previous: Handler = None
        self._installed: Handler = None

    def install(self) -> Hook:
        # Only the main thread may set handlers; elsewhere (async actors) atexit has to do.
        if threading.current_thread() is not threading.main_thread():
            return self
        self._previous = signal.getsignal(signal.SIGTERM)
        # None: set by C code, cannot be chained. Ignored: the process does not die of it.
        if self._previous is None or self._previous == signal.SIG_IGN:
            return self
        self._installed = self._handle
        signal.signal(signal.SIGTERM, self._installed)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._action is None or self._action():
            self.deliver(number, frame)

    def deliver(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """What would have happened without us."""
        if callable(self._previous):
            self._previous(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def remove(self) -> None:
        """Take the handler back where that is possible; else it passes signals on."""
        self._action = None
        if self._installed is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._installed:
            signal.signal(signal.SIGTERM, self._previous)
            self._installed = None


def on_terminate(action: Callable[[], bool]) -> Hook:
    """Run `action` on SIGTERM, then the handler that was there."""
    return Hook(action).install()


def close_weakly(reference: weakref.ref[Closable]) -> None:
    """Close a profiler at interpreter exit, if it still lives."""
    profiler = reference()
    if profiler is not None:
        profiler.close()


def forget_in_children(profiler: Forgetful) -> None:
    """Tell `profiler` when this process has become a forked child."""
    reference = weakref.ref(profiler)

    def forget() -> None:
        found = reference()
        if found is not None:
            found._forget()

    os.register_at_fork(after_in_child=forget)
