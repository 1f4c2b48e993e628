"""Decorators for what training code is made of: functions, methods, coroutines, generators and async
generators.

`holder.profiler` may change after a function was decorated: from nothing to the profiler that `from_env`
makes. Outside windows a call costs two attributes and one check. The function runs exactly once and its
exceptions are its own.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any


class Holder:
    """Where a decorated function finds its profiler when it is called."""

    __slots__ = ("profiler",)

    def __init__(self, profiler: Any) -> None:
        self.profiler = profiler


def annotated(holder: Any, function: Any, name: str) -> Any:
    """`function` with a range around each run of it: for a coroutine across its awaits, for a generator
    until it is exhausted or closed.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(annotated(holder, function.__func__, name))
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"annotate is for functions and methods, not for {function!r}")
    if inspect.iscoroutinefunction(function):
        made = _coroutine(holder, function, name)
    elif inspect.isasyncgenfunction(function):
        made = _async_generator(holder, function, name)
    elif inspect.isgeneratorfunction(function):
        made = _generator(holder, function, name)
    else:
        made = _plain(holder, function, name)
    return functools.update_wrapper(made, function)


def _plain(holder: Any, function: Any, name: str) -> Any:
    def plain(*args: Any, **kwargs: Any) -> Any:
        profiler = holder.profiler
        if not profiler.active:
            return function(*args, **kwargs)
        with profiler.range(name):
            return function(*args, **kwargs)

    return plain


def _coroutine(holder: Any, function: Any, name: str) -> Any:
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        profiler = holder.profiler
        if not profiler.active:
            return await function(*args, **kwargs)
        with profiler.range(name):
            return await function(*args, **kwargs)

    return coroutine


def _generator(holder: Any, function: Any, name: str) -> Any:
    def generator(*args: Any, **kwargs: Any) -> Any:
        with holder.profiler.range(name):
            return (yield from function(*args, **kwargs))

    return generator


def _async_generator(holder: Any, function: Any, name: str) -> Any:
    async def async_generator(*args: Any, **kwargs: Any) -> Any:
        with holder.profiler.range(name):
            # There is no `yield from` for async generators: hand on what is sent and thrown in (PEP 380, PEP
            # 525).
            inner = function(*args, **kwargs)
            try:
                item = await inner.__anext__()
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:
                        item = await inner.athrow(error)
                    else:
                        item = await inner.asend(sent)
            except StopAsyncIteration:
                return
            finally:
                await inner.aclose()

    return async_generator
