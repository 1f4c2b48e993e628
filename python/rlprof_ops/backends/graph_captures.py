"""CUDA graphs that this process captures: what CUDA lets nobody do meanwhile waits for the capture's end.

While a stream is captured CUDA refuses whatever synchronises its device, and the capture fails too: a
torch.profiler that began or ended in another thread ended the program that captured, by
cudaErrorStreamCaptureInvalidated (torch 2.11 on an H200, with each error mode of a capture).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from rlprof_ops.backends.contract import CaptureError
from rlprof_ops.words import limit

# A capture waits at most so long for us: CUPTI's first start takes some 4 s (H200).
_LONGEST_S = 30.0


class GraphCaptures:
    """Who captures in this process, in whatever thread."""

    def __init__(self) -> None:
        self._followed: list[type] = []
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._threads: dict[int, int] = {}  # a graph that is being captured -> by which thread
        self._waiting = 0
        self._apart: int | None = None

    def follow(self, graphs: ModuleType) -> None:
        """Know of each capture from now on: `torch.cuda.graphs` has been imported."""
        named = [kind for kind in graphs.CUDAGraph.__mro__ if "capture_begin" in vars(kind)]
        # torch's own base first, which a subclass of the program's calls too; some types cannot be changed
        any(self._wrap(kind) for kind in reversed(named))

    def _wrap(self, kind: Any) -> bool:
        """Whether both of its functions are ours now. Others than plain ones stay: it is another torch's."""
        if any(each is kind for each in self._followed):
            return True
        begin, end = vars(kind).get("capture_begin"), vars(kind).get("capture_end")
        if not (_is_plain(begin) and _is_plain(end)):
            return False
        with contextlib.suppress(Exception):
            kind.capture_begin, kind.capture_end = self._beginning(begin), self._ending(end)
            self._followed.append(kind)
            return True
        return False

    def _beginning(self, function: Any) -> Callable[..., Any]:
        def capture_begin(*arguments: Any, **named: Any) -> Any:
            self._begin(arguments[:1])
            try:
                return function(*arguments, **named)
            except BaseException:
                self._end(arguments[:1])
                raise

        return _as(function, capture_begin)

    def _ending(self, function: Any) -> Callable[..., Any]:
        def capture_end(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            finally:
                self._end(arguments[:1])

        return _as(function, capture_end)

    def _begin(self, graph: tuple[object, ...]) -> None:
        me, until = threading.get_ident(), time.monotonic() + _LONGEST_S
        with self._changed:
            while self._is_barred(me) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            self._threads[_number(graph)] = me

    def _is_barred(self, thread: int) -> bool:
        if self._apart is not None:
            return self._apart != thread
        return bool(self._waiting) and not self._threads  # beside a capture that goes on nobody can begin

    def _end(self, graph: tuple[object, ...]) -> None:
        with self._changed:
            self._threads.pop(_number(graph), None)
            self._changed.notify_all()

    @contextlib.contextmanager
    def apart(self, wait_s: float) -> Iterator[None]:
        """Nothing is captured in this block, which waits for that.

        Raises `CaptureError`: this thread captures itself, or others did for all of `wait_s`.
        """
        me = threading.get_ident()
        if self._apart == me:
            yield
            return
        self._wait(me, wait_s)
        try:
            yield
        finally:
            with self._changed:
                self._apart = None
                self._changed.notify_all()

    def _wait(self, me: int, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        with self._changed:
            self._waiting += 1
            try:
                while self._threads or self._apart is not None:
                    if me in self._threads.values():
                        raise CaptureError(
                            "this thread was capturing a CUDA graph, which a profiler would break: choose a"
                            " later step"
                        )
                    if (left := until - time.monotonic()) <= 0:
                        raise CaptureError(
                            f"CUDA graphs were being captured for {limit(wait_s)}, and a profiler that begins"
                            " or ends meanwhile breaks them: choose a later step"
                        )
                    self._changed.wait(left)
                self._apart = me
            finally:
                self._waiting -= 1
                self._changed.notify_all()


def _is_plain(function: object) -> bool:
    """A function of Python's, or a method of a class in C++."""
    if inspect.isfunction(function):
        odd = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        return not any(is_odd(function) for is_odd in odd)
    return type(function).__name__ in ("instancemethod", "builtin_function_or_method", "method_descriptor")


def _as(function: Any, ours: Callable[..., Any]) -> Callable[..., Any]:
    """`ours`, to whoever looks at it the function that it calls."""
    seen = functools.wraps(function)(ours)
    with contextlib.suppress(TypeError, ValueError):  # one of C++ has no signature
        seen.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return seen


def _number(graph: tuple[object, ...]) -> int:
    return id(graph[0]) if graph else 0


captures = GraphCaptures()
"""Of this process."""


def install(_: str, graphs: ModuleType) -> None:
    """From torch's import on, so that a window asked for later knows of a capture that goes on."""
    captures.follow(graphs)
