"""Every torch.profiler that runs in this process, in whatever thread: ours gives way to the program's own.

torch bears one at a time. Two that overlap, or one that was prepared while another runs, end the process with
SIGSEGV (seen with 2.13, in each order, in one thread and in two). So ours does not open while another is
prepared or runs, and is closed before another one gets ready. All of torch's own ways to open one, and those
of the libraries above it, go through a handful of functions of `torch._C._autograd`; those are followed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Protocol

from rlprof_ops.backends.contract import CaptureError, Yielded
from rlprof_ops.backends.graph_captures import captures
from rlprof_ops.backends.torch.open_ranges import OpenRanges
from rlprof_ops.backends.window_timeouts import open_wait_s
from rlprof_ops.host.log_line import log, log_once
from rlprof_ops.host.threads.time_limits import time_limits_wait

_OPENING = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_CLOSING = ("_disable_profiler", "_disable_profiler_legacy")
_HOMES = ("torch._C._autograd", "torch.autograd", "torch.autograd.profiler", "torch.autograd.profiler_legacy")
_UNKNOWN, _ANY = 0, -1  # no thread has these numbers
ADVICE = "choose other steps for one of the two, or switch the program's own profiling off"


class OurProfiler(Protocol):
    """The one profiler of ours that runs."""

    def cut(self, reason: str) -> None:
        """End now and keep what was recorded. Called in its own thread, or in any where torch allows that."""

    def abandon(self, reason: str) -> None:
        """It runs on in its own thread, for nothing: its trace is lost."""


class RunningProfilers:
    """Who profiles in this process by torch. One lock orders those that open and close, whatever the
    thread."""

    def __init__(self) -> None:
        self._followed = False
        self._local = threading.local()
        self._starts = False  # ours
        self.ranges = OpenRanges(lambda: self._starts or self._ours is not None or bool(self._theirs))
        self.reset()
        os.register_at_fork(after_in_child=self._in_child)

    def reset(self) -> None:
        """Nobody profiles."""
        self._lock = threading.RLock()
        self._theirs: dict[int, str] = {}  # the thread that opened it -> how that is called
        self._ours: OurProfiler | None = None
        self._our_thread: int | None = None  # None: any thread may end ours
        self._left: set[int] = set()  # threads in which one of ours was left running; _ANY may end it

    def _in_child(self) -> None:
        # Nothing of ours is the child's: torch would record on in it, for nobody. What the forked thread
        # recorded of the program's own goes on, and torch bears that. Who held the lock was changing it.
        theirs = self._theirs.get(threading.get_ident())
        ours = (self._ours is not None or self._left) and not self._theirs
        still = ours and self._lock.acquire(blocking=False)
        self.reset()
        if theirs is not None:
            self._theirs[threading.get_ident()] = theirs
        if still:
            with contextlib.suppress(Exception):
                _collect_no_more()

    # -- following torch

    def follow(self, _: ModuleType | None = None) -> None:
        """From now on know of every profiler of the process, where torch is imported."""
        with self._lock:
            if self._followed:
                return
            wrappers: dict[Any, Any] = {}
            for home in _HOMES:
                module = sys.modules.get(home)
                for name in (*_OPENING, *_CLOSING) if module is not None else ():
                    function = getattr(module, name, None)
                    if function is None:
                        continue
                    kind = self._opening if name in _OPENING else self._closing
                    if function not in wrappers:
                        wrappers[function] = kind(function)
                    setattr(module, name, wrappers[function])
            self._followed = bool(wrappers)
            profiler = sys.modules.get("torch.autograd.profiler")
            if getattr(profiler, "_is_profiler_enabled", False):
                self._theirs[_UNKNOWN] = "of which is not known, since it was open before,"

    def _opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def opening(*arguments: Any, **named: Any) -> Any:
            if getattr(self._local, "ours", False):
                return function(*arguments, **named)
            with self._lock:
                is_new = threading.get_ident() not in self._theirs
                try:
                    if is_new:
                        self._guarded(self._they_begin)
                    return function(*arguments, **named)
                except BaseException:
                    if is_new:
                        self._theirs.pop(threading.get_ident(), None)
                    raise

        return opening

    def _closing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def closing(*arguments: Any, **named: Any) -> Any:
            if getattr(self._local, "ours", False):
                return function(*arguments, **named)
            result = None
            try:
                result = function(*arguments, **named)
                return result
            finally:
                self._guarded(lambda: self._they_ended(result))

        return closing

    def _guarded(self, action: Callable[[], object]) -> None:
        with time_limits_wait():
            try:
                action()
            except Exception as error:  # theirs goes on, whatever ours does
                log_once(
                    f"torch.profiler of the program's own is not followed: {type(error).__name__}: {error}"
                )

    def _they_begin(self) -> None:
        """Theirs gets ready in this thread: ours ends first."""
        thread = threading.current_thread()
        ident = threading.get_ident()
        self._theirs[ident] = thread.name
        self._follow_ranges()
        ours, self._ours = self._ours, None
        if ours is not None and self._our_thread in (None, ident):
            reason = f"yielded to a torch.profiler of the program's own, which began in thread {thread.name}"
            log(f"torch capture {reason}; the trace ends there")
            ours.cut(f"{reason}: the trace ends there; for whole ones {ADVICE}")
        elif ours is not None:
            assert self._our_thread is not None
            self._left.add(self._our_thread)
            reason = (
                f"yielded to a torch.profiler of the program's own, which began in thread {thread.name};"
                " torch ends ours only in the thread that it was opened in, so its trace is lost"
            )
            log(f"torch capture {reason}")
            ours.abandon(f"{reason}: set `all_threads: true`, {ADVICE}")
        self._settle_left(ident)

    def _they_ended(self, result: Any) -> None:
        with self._lock:
            ident = threading.get_ident()
            if ident not in self._theirs and self._theirs:
                # One of all threads may be ended in any: torch's result tells whether one was.
                began = getattr(result, "trace_start_ns", None)
                if began is None or not began():
                    return
                ident = next(iter(self._theirs))
            self._theirs.pop(ident, None)

    # -- ours

    @contextlib.contextmanager
    def as_ours(self) -> Iterator[None]:
        """Calls of torch in this block are ours."""
        with self._lock:
            before = getattr(self._local, "ours", False)
            self._local.ours = True
            try:
                yield
            finally:
                self._local.ours = before

    def begin(self, ours: OurProfiler, start: Callable[[], None], any_thread: bool) -> None:
        """Start ours. Raises `Yielded` while another is prepared or runs, and what `start` raises."""
        with self.as_ours():
            running = self._other()
            if running:
                raise Yielded(
                    f"yielded to a torch.profiler of the program's own, {running}: torch bears one at a time;"
                    f" {ADVICE}"
                )
            self._settle_left(threading.get_ident())
            self._follow_ranges()
            self.ranges.forget()  # those of a profiler of the program's own that is over
            self._starts = True
            try:
                start()
                self._ours, self._our_thread = ours, None if any_thread else threading.get_ident()
            finally:
                self._starts = False

    def _follow_ranges(self) -> None:
        profiler = sys.modules.get("torch.autograd.profiler")
        if profiler is not None and hasattr(profiler, "record_function"):
            self._guarded(lambda: self.ranges.follow(profiler))

    def end(self, ours: OurProfiler, stop: Callable[[], None]) -> None:
        """Stop ours by `stop`, unless it has ended already. Raises `CaptureError` in a thread where torch
        would crash.
        """
        with self.as_ours():
            if self._ours is not ours:
                return
            self._ours = None
            if self._our_thread not in (None, threading.get_ident()):
                assert self._our_thread is not None
                self._left.add(self._our_thread)
                raise CaptureError(
                    "torch.profiler can only be stopped by the thread that started it: set"
                    " `all_threads: true`"
                )
            stop()

    def leave(self) -> None:
        """Ours runs on: it would not stop."""
        self._left.add(_ANY if self._our_thread is None else self._our_thread)

    def settle(self) -> None:
        """End what was left running in this thread, when nobody profiles any more."""
        with self._lock:
            self._settle_left(threading.get_ident())

    def _other(self) -> str:
        """Which profiler is in the way, or nothing."""
        if self._theirs:
            return f"which thread {next(iter(self._theirs.values()))} has opened"
        return ""

    def _settle_left(self, thread: int) -> None:
        """Ended while no session of libkineto is there, ours would crash; a prepared one makes it end in
        order.
        """
        left = self._left & {thread, _ANY}
        if not left or self._ours is not None or self._theirs.keys() - {thread}:
            return
        with captures.apart(open_wait_s()), self.as_ours():
            self._left -= left
            import torch

            torch.autograd.profiler.profile(use_kineto=True)._prepare_trace()
            torch.autograd._disable_profiler()


def _collect_no_more() -> None:
    """End the recording of operators and of Python's frames in a forked child, whose GPU is not touched."""
    torch = sys.modules["torch"]
    torch.autograd._toggle_collection_dynamic(False, {torch.profiler.ProfilerActivity.CPU})
    if type(sys.getprofile()).__name__ == "TraceContext":  # torch's, for `with_stack`
        sys.setprofile(None)


running = RunningProfilers()
