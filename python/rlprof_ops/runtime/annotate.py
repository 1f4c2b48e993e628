"""Decorators for what training code is made of: functions, coroutines, generators and methods."""

from __future__ import annotations

import functools
import inspect
from typing import Any


def annotated(profiler: Any, function: Any, name: str) -> Any:
    """`function` with a range around each call while a window of `profiler` is open; otherwise one check and the call."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            if not profiler.active:
                return await function(*args, **kwargs)
            with profiler.range(name):
                return await function(*args, **kwargs)

        return coroutine

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        if not profiler.active:
            return function(*args, **kwargs)
        with profiler.range(name):
            return function(*args, **kwargs)

    return plain
