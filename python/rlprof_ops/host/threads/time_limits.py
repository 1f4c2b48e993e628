"""A program's time limits, its own and the notice of Slurm's, beside work of ours in its main thread."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, cast

_LIMITS = (
    signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF,  # setitimer(2)
    signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP,  # `sbatch --signal`, and SIGINT
)  # fmt: skip
_NOTHING = contextlib.nullcontext()
# C's own make no member of an enumeration: ten times as fast.
_get: Callable[[int], Any] = getattr(signal, "_signal", signal).getsignal
_set: Callable[[int, Any], Any] = getattr(signal, "_signal", signal).signal
_ACTION_BYTES = 256  # a `struct sigaction` takes 152 with glibc and musl
# All are changed in the main thread alone.
_HELD: dict[int, Any] = {}  # the program's handlers in whose place `_hold` is
_ACTIONS: dict[int, Any] = {}  # theirs as C has them: faulthandler's, or with flags of asyncio's
_CAME: dict[int, None] = {}


def time_limits_wait() -> AbstractContextManager[None]:
    """In its block the handler of a time limit waits until the end.

    A verifier or a sampler gives a sample up by a handler of SIGALRM that raises, a trainer leaves its loop
    by one of SIGUSR1 or SIGTERM. Raised while a profiler is started or stopped, that would be taken for the
    profiler's fault: the program would wait for ever, or be killed without its last checkpoint.
    """
    if _HELD or not (any(map(callable, map(_get, _LIMITS))) or _raises(_get(signal.SIGINT))):
        return _NOTHING
    return _BLOCK if threading.get_ident() == threading.main_thread().ident else _NOTHING


def handler_of(number: int) -> Any:
    """As `signal.getsignal`, also within such a block; for any thread."""
    held = _HELD.get(number)
    return signal.getsignal(number) if held is None else held


def set_handler(number: int, handler: Any) -> None:
    """As `signal.signal`, from the end of such a block on."""
    if number in _HELD:
        _HELD[number] = handler
        _ACTIONS.pop(number, None)
    else:
        signal.signal(number, handler)


def is_waiting(number: int) -> bool:
    """Whether such a signal has come, and its handler waits for the end of a block."""
    return number in _CAME


def _raises(handler: Any) -> bool:
    """Whether what a handler raises could be taken for a fault: KeyboardInterrupt is not."""
    return callable(handler) and handler is not signal.default_int_handler


class _Block:
    def __enter__(self) -> None:
        try:
            for number in (*_LIMITS, signal.SIGINT):
                handler = _get(number)
                if _raises(handler):
                    _ACTIONS[number] = _action(number)
                    _HELD[number] = handler
                    _set(number, _hold)
        except BaseException:  # of a handler whose turn had not come
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            _give_back()
        finally:
            _call()


_BLOCK = _Block()


@functools.cache
def _sigaction() -> Callable[..., object]:
    """C's own; one that does nothing in a Python without ctypes."""
    try:
        import ctypes

        return cast("Callable[..., object]", ctypes.CDLL(None).sigaction)
    except (ImportError, OSError, AttributeError):
        return lambda *_: None


def _action(number: int) -> Any:
    """What C does at the signal, which Python's own table does not know; None where that cannot be had."""
    with contextlib.suppress(ImportError):
        import ctypes

        action = ctypes.create_string_buffer(_ACTION_BYTES)
        return action if _sigaction()(number, None, action) == 0 else None
    return None


def _hold(number: int, _: FrameType | None) -> None:
    _CAME[number] = None


def _give_back() -> None:
    """Set all of them, though one that is set already may run and raise."""
    try:
        while _HELD:
            number, handler = next(iter(_HELD.items()))
            (_set if callable(handler) else signal.signal)(number, handler)  # C knows no SIG_DFL of an enum
            if (action := _ACTIONS.get(number)) is not None:
                _sigaction()(number, action, None)
            if _HELD[number] is handler:  # not meanwhile another one
                del _HELD[number]
    finally:
        if _HELD:
            _give_back()


def _call() -> None:
    """All that came, though one may raise."""
    try:
        while _CAME:
            number, _ = _CAME.popitem()
            handler = signal.getsignal(number)
            if callable(handler):
                handler(number, sys._getframe())
            else:
                signal.raise_signal(number)
    finally:
        if _CAME:
            _call()


def _in_child() -> None:
    """Another thread may have forked meanwhile; what came is the parent's."""
    _CAME.clear()
    _give_back()


os.register_at_fork(after_in_child=_in_child)
