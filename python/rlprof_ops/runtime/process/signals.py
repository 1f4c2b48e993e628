"""The ends of a process: SIGTERM, interpreter exit, and the fork that must not end what is its parent's."""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from rlprof_ops.backends.window_timeouts import close_wait_s
from rlprof_ops.host.log_line import log
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.host.threads.time_limits import handler_of, set_handler
from rlprof_ops.runtime.process.wakeup_thread import WakeupThread
from rlprof_ops.words import limit

if TYPE_CHECKING:
    Handler = Callable[[int, FrameType | None], object] | int | None


_PATIENCE_S = 1.0  # for the main thread to come to its next instruction of Python
_BUSY_S = 0.1  # between two looks whether a profiler is still busy

# What ends a process, by the names in a function's code.
_ENDS = frozenset(
    {"kill", "killpg", "raise_signal", "abort", "SystemExit", "exit", "_exit", "KeyboardInterrupt"}
)


class Closable(Protocol):
    """What has to be closed before its process ends."""

    def close(self) -> None: ...


class Forgetful(Protocol):
    """What a forked child must let go."""

    def _forget(self) -> None: ...


class Hook:
    """One installed action; `remove` takes it back unless somebody has put another handler on top.

    `action` returns False to hold the signal back; it then calls `deliver` when it is ready.

    A handler that was put on top later may call this one as the one that was there (Lightning's does). What
    becomes of the process is then its decision: without us it would have found nothing to call. One that has
    an end of its own for that case, and so does not come to it, gets what would have happened.

    Where no handler was there, a main thread that waits in C code keeps nobody waiting: another one does the
    action, as soon as nothing is `busy`, and the process ends.
    """

    def __init__(self, action: Callable[[], bool], busy: Callable[[], bool] = lambda: False) -> None:
        self._action: Callable[[], bool] | None = action
        self._busy = busy
        self._thread: WakeupThread | None = None
        self._turn = threading.Lock()  # of who does the action
        self._has_turn = False  # the main thread
        self._previous: Handler = None
        self._installed: Handler = None
        self._passed_on = False  # the signal came by a handler of the program's, put on top of ours

    def install(self) -> Hook:
        # Only the main thread may set handlers; elsewhere (async actors) atexit has to do.
        if threading.current_thread() is not threading.main_thread():
            return self
        self._previous = handler_of(signal.SIGTERM)
        # None: set by C code, cannot be chained. Ignored: the process does not die of it.
        if self._previous is None or self._previous == signal.SIG_IGN:
            return self
        self._installed = self._handle
        set_handler(signal.SIGTERM, self._installed)
        if self._previous == signal.SIG_DFL and _default_setter() is not None:
            with contextlib.suppress(OSError, RuntimeError):  # no descriptors, no threads
                self._thread = WakeupThread(self._end_beside)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._has_turn = self._has_turn or self._turn.acquire(blocking=False)
        if not self._has_turn:
            return
        self._passed_on = not self._heard_first() and not _can_end(sys._getframe(1), frame)
        if self._action is None or self._action():
            self.deliver(number, frame)

    def deliver(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """What would have happened without us."""
        if callable(self._previous):
            self._previous(number, frame)
        elif not self._passed_on:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _heard_first(self) -> bool:
        """Whether none but hooks of ours hears a signal before this one."""
        handler: object = handler_of(signal.SIGTERM)
        while handler != self._handle:
            hook = getattr(handler, "__self__", None)
            if not isinstance(hook, Hook):
                return False
            handler = hook._previous
        return True

    def _end_beside(self) -> None:
        """End the process by the signal that came, unless its main thread does or a handler of the program's
        is there, which would have waited for it as well.
        """
        time.sleep(_PATIENCE_S)
        deadline = time.monotonic() + close_wait_s()
        while any(hook._busy() for hook in _hooks_alone()) and time.monotonic() < deadline:
            time.sleep(_BUSY_S)
        hooks, to_default = _hooks_alone(), _default_setter()
        if to_default is None or not hooks or not hooks[0]._turn.acquire(blocking=False):
            return
        actions = [hook._action for hook in hooks if hook._action is not None]
        closing = OwnThread(lambda: [action() for action in actions])
        with contextlib.suppress(RuntimeError):  # no new threads
            closing.start()
            closing.join(max(0.0, deadline - time.monotonic()))
        if closing.is_alive():
            log(f"told to end in C code: its windows did not close within {limit(close_wait_s())}")
        to_default(signal.SIGTERM, None)
        os.kill(os.getpid(), signal.SIGTERM)

    def remove(self) -> None:
        """Take the handler back where that is possible; else it passes signals on."""
        self._action = None
        if self._installed is None or threading.current_thread() is not threading.main_thread():
            return
        if self._thread is not None:
            self._thread.stop()
        # One that was put on top and taken off again has left others there that were removed before.
        handler = handler_of(signal.SIGTERM)
        while isinstance(hook := getattr(handler, "__self__", None), Hook) and hook._action is None:
            handler = hook._previous
            set_handler(signal.SIGTERM, handler)


def _hooks_alone() -> list[Hook]:
    """The hooks that hear SIGTERM, the first one first, where they alone do and the default is below."""
    found: list[Hook] = []
    handler: object = handler_of(signal.SIGTERM)
    while isinstance(hook := getattr(handler, "__self__", None), Hook):
        found.append(hook)
        handler = hook._previous
    return found if handler == signal.SIG_DFL else []


@functools.cache
def _default_setter() -> Callable[[int, None], object] | None:
    """C's `signal`, which any thread may call; None in a Python without ctypes."""
    try:
        import ctypes

        setter = ctypes.CDLL(None).signal
        setter.argtypes = (ctypes.c_int, ctypes.c_void_p)
        setter.restype = ctypes.c_void_p
    except (ImportError, OSError, AttributeError):
        return None
    return setter


def _can_end(handler: FrameType | None, interrupted: FrameType | None) -> bool:
    """Whether a handler, which began in the frame that the signal interrupted, can end the process itself."""
    while handler is not None and handler is not interrupted:
        if handler.f_code.co_filename != __file__ and not _ENDS.isdisjoint(handler.f_code.co_names):
            return True
        handler = handler.f_back
    return False


def on_terminate(action: Callable[[], bool], busy: Callable[[], bool] = lambda: False) -> Hook:
    """Run `action` on SIGTERM, then the handler that was there. `busy`: not yet in another thread."""
    return Hook(action, busy).install()


class Termination:
    """Runs `action` on SIGTERM while there is something to save, as `keep` says. Else no handler of ours is
    there: Python calls one between two of its own instructions, and a process that waits in C code, as in a
    collective, would not be ended at once.
    """

    def __init__(self, action: Callable[[], bool], busy: Callable[[], bool]) -> None:
        self._action = action
        self._busy = busy
        self._hook: Hook | None = None  # the one installed last
        self._wanted = self._is_on = self._changing = False

    def keep(self, wanted: bool) -> None:
        """Whether there is something to save, from now on. For any thread, one at a time."""
        changes, self._wanted = wanted != self._wanted, wanted
        if threading.current_thread() is threading.main_thread():
            self._change()
        elif changes:
            _in_main_thread(self._change)

    def deliver(self) -> None:
        """What would have happened without us, for an `action` that held a signal back."""
        if self._hook is not None:
            self._hook.deliver()

    def _change(self) -> None:
        if self._changing:  # it was interrupted by a change that another thread wants
            return
        self._changing = True
        try:
            while self._is_on != self._wanted:
                self._is_on = self._wanted
                if self._is_on:
                    self._hook = on_terminate(self._action, self._busy)
                elif self._hook is not None:
                    self._hook.remove()
        finally:
            self._changing = False


_CALLS: collections.deque[Callable[[], None]] = collections.deque()


def _in_main_thread(action: Callable[[], None]) -> None:
    """Call `action` before the main thread's next instruction of Python: it alone may set handlers."""
    with contextlib.suppress(ImportError, OSError, AttributeError):  # a Python without ctypes
        import ctypes

        _CALLS.append(action)
        ctypes.pythonapi.Py_AddPendingCall(_pending_call(), None)


@functools.cache
def _pending_call() -> object:
    """What runs `_CALLS`. It is never freed: the interpreter may still call it."""
    import ctypes

    def call(_: object) -> int:
        with contextlib.suppress(Exception):
            while _CALLS:
                _CALLS.popleft()()
        return 0

    return ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)


def close_at_exit(profiler: Closable) -> Callable[[], None]:
    """Close `profiler` at interpreter exit, if it still lives; returns what takes that back.

    A child that multiprocessing has forked runs no exit handlers (Python 3.10, 3.11), but the finalizers of
    multiprocessing.
    """
    reference = weakref.ref(profiler)

    def close() -> None:
        found = reference()
        if found is not None:
            found.close()

    atexit.register(close)
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, close, exitpriority=0)
    return functools.partial(atexit.unregister, close)


def forget_in_children(profiler: Forgetful) -> None:
    """Tell `profiler` when this process has become a forked child."""
    reference = weakref.ref(profiler)

    def forget() -> None:
        found = reference()
        if found is not None:
            found._forget()

    os.register_at_fork(after_in_child=forget)
