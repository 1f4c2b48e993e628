"""Ranges of the program's (`record_function`) that are still open when a torch.profiler ends.

One that began under a profiler and ends under the next has its end written into memory that the first has
freed. With torch 2.13 the process died of it, by SIGSEGV or in free(), when five ranges were open from one
window into the next. So what is open when ours ends is ended with it, and no profiler hears of its true end.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from rlprof_ops.host.log_line import log_once


class OpenRanges:
    """Those of the process that began while `live` said that a profiler runs."""

    def __init__(self, live: Callable[[], bool]) -> None:
        self._live = live
        self._enter = self._leave = _nothing
        self._open: dict[int, tuple[Any, int]] = {}  # by id: the range, and its thread
        self._never_ended: list[object] = []  # torch would end them where they are let go

    def follow(self, profiler: ModuleType) -> None:
        """Know of each range from now on: a profiler begins."""
        kind = profiler.record_function
        enter, leave = vars(kind).get("__enter__"), vars(kind).get("__exit__")
        if self._enter is not _nothing or not (
            isinstance(enter, types.FunctionType) and isinstance(leave, types.FunctionType)
        ):
            return
        self._enter, self._leave = enter, leave
        kind.__enter__ = _as(enter, self._entered)
        kind.__exit__ = _as(leave, self._left)

    def _entered(self, range_: Any) -> Any:
        found = self._enter(range_)
        if self._live():
            self._open[id(range_)] = range_, threading.get_ident()
        return found

    def _left(self, range_: Any, *error: Any) -> Any:
        try:
            return self._leave(range_, *error)
        finally:
            self._open.pop(id(range_), None)

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """A profiler ends in this block, and with it what this thread has open. What others have is not heard
        of any more.
        """
        me = threading.get_ident()
        for range_, thread in reversed(list(self._open.values())):
            if thread == me and _ends_itself(range_):
                self._safely(self._leave, range_, None, None, None)
        try:
            yield
        finally:
            self.forget()

    def forget(self) -> None:
        """No profiler runs: what is open begins anew, unheard."""
        for number in list(self._open):
            range_, _ = self._open.pop(number, (None, 0))  # another thread may end it just now
            if range_ is not None and _ends_itself(range_):
                self._never_ended.append(vars(range_).get("record"))
                self._safely(self._enter, range_)

    def _safely(self, action: Callable[..., object], *arguments: object) -> None:
        try:
            action(*arguments)
        except Exception as error:  # the program goes on, whatever torch says
            log_once(f"a range that is open around a torch window: {type(error).__name__}: {error}")


def _nothing(*_: Any) -> Any:
    pass


def _ends_itself(range_: Any) -> bool:
    """Not one that ends with a future."""
    return bool(getattr(range_, "run_callbacks_on_exit", True))


def _as(function: types.FunctionType, ours: Callable[..., Any]) -> Any:
    """`ours` in the place of `function`, whose names it sees: TorchScript compiles torch's own text of it."""

    def method(self, *arguments):  # type: ignore[no-untyped-def]
        return ours(self, *arguments)

    seen = types.FunctionType(
        method.__code__, function.__globals__, function.__name__, None, method.__closure__
    )
    return functools.wraps(function)(seen)
