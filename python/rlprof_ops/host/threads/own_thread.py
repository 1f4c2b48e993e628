"""A thread of ours in a program that is watched, which does as if it were alone.

A program may join every thread that `threading.enumerate()` gives it: one of ours may end only with the
process, or with the step that waits for it. And a program may block signals and take them with `sigwait`: the
kernel gives them to any thread that has not blocked them, where they end the process.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from rlprof_ops.host.log_line import log_once

# Faults of the thread itself: blocked, they end the process without the program's handler (faulthandler's).
_FAULTS = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGABRT,
        signal.SIGSYS,
    }
)


class _Here(threading.local):
    """What the program had blocked where this thread was started; None in a thread that is not ours."""

    blocked: set[int | signal.Signals] | None = None


_HERE = _Here()


class OwnThread:
    """Runs `work(*arguments)` from `start` on, in a thread that `threading` does not list and that takes no
    signal. Like a daemon's, its end is waited for by nobody but `join`.

    The work must call neither `threading.current_thread` nor a method of `threading.Thread`: they would list
    it.
    """

    def __init__(self, work: Callable[..., object], *arguments: object) -> None:
        self._work, self._arguments = work, arguments
        self._pid = self._ident = 0
        self._ended = False
        # Unlike an Event's, it bears a signal whose handler waits too.
        self._runs = _thread.allocate_lock()
        self._runs.acquire()

    def start(self) -> OwnThread:
        """Begin, once; returns itself. Raises RuntimeError where no thread can be started."""
        self._pid = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        try:
            _thread.start_new_thread(self._run, (before if _HERE.blocked is None else _HERE.blocked,))
        except RuntimeError:
            self._ended = True
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def is_alive(self) -> bool:
        """Whether it has begun and not ended; in a forked child none has."""
        return not self._ended and os.getpid() == self._pid

    def join(self, seconds: float) -> None:
        """Wait for its end, so long at most; itself never waits."""
        elsewhere = self.is_alive() and self._ident != _thread.get_ident()
        if elsewhere and self._runs.acquire(timeout=max(0.0, seconds)):
            self._runs.release()

    def _run(self, before: set[int | signal.Signals]) -> None:
        self._ident, _HERE.blocked = _thread.get_ident(), before
        try:
            self._work(*self._arguments)
        except BaseException as error:  # the program runs on
            log_once(f"a thread of ours ended: {type(error).__name__}: {error}")
        finally:
            # What stands for it if something has asked for the current thread: before 3.12 it would stay.
            getattr(threading, "_active", {}).pop(self._ident, None)
            self._ended = True
            self._runs.release()


@contextlib.contextmanager
def signals_for_a_child() -> Iterator[None]:
    """Around the start of a command, which inherits what is blocked: from a thread of ours as from the
    program.
    """
    if _HERE.blocked is None:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_SETMASK, _HERE.blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
