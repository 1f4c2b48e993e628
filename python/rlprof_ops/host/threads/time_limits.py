"""A program's own time limits beside work of ours in its main thread."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

_TIMERS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)  # setitimer(2)
_NOTHING = contextlib.nullcontext()
_of_c = getattr(signal, "_signal", signal).getsignal  # makes no member of an enumeration: ten times as fast
_HELD: dict[
    int, Any
] = {}  # the program's handlers in whose place `hold` is, which the main thread alone sets


def time_limits_wait() -> AbstractContextManager[None]:
    """In its block the handler of a timer waits until the end.

    A verifier or a sampler gives a sample up by a handler of SIGALRM that raises. Raised while a profiler is
    started or stopped, that would be taken for the profiler's fault, and the program would wait for ever.
    """
    if _HELD or not any(map(callable, map(_of_c, _TIMERS))):
        return _NOTHING
    return _held() if threading.get_ident() == threading.main_thread().ident else _NOTHING


@contextlib.contextmanager
def _held() -> Iterator[None]:
    known = {number: signal.getsignal(number) for number in _TIMERS}
    handlers: dict[int, Any] = {number: handler for number, handler in known.items() if callable(handler)}
    came: dict[int, None] = {}

    def hold(number: int, _: FrameType | None) -> None:
        came[number] = None

    try:
        _HELD.update(handlers)
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        try:
            _give_back()
        finally:
            _call([(number, handlers[number]) for number in came])


def _give_back() -> None:
    """Set all of them, though one that is set already may run and raise."""
    try:
        while _HELD:
            number = next(iter(_HELD))
            signal.signal(number, _HELD[number])
            del _HELD[number]
    finally:
        if _HELD:
            _give_back()


def _call(handlers: list[tuple[int, Any]]) -> None:
    """All of them, though one may raise."""
    try:
        while handlers:
            number, handler = handlers.pop()
            handler(number, sys._getframe())
    finally:
        if handlers:
            _call(handlers)


os.register_at_fork(after_in_child=_give_back)  # another thread may have forked meanwhile
