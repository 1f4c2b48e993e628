"""Decorators for what training code is made of: functions, methods, coroutines, generators and async
generators.

`holder.profiler` may change after a function was decorated: from nothing to the profiler that `from_env`
makes. Outside windows a call costs two attributes and one check. The function runs exactly once and its
exceptions are its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from rlprof_ops.runtime.active_profiler import Profiler
    from rlprof_ops.runtime.null_profiler import NullProfiler

P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
S = TypeVar("S")
Function = TypeVar("Function")


class ProfilerHolder(Protocol):
    """Has the profiler that a decorated function asks at each call."""

    profiler: Profiler | NullProfiler


class Holder:
    """Where a decorated function finds its profiler when it is called."""

    __slots__ = ("profiler",)

    def __init__(self, profiler: Profiler | NullProfiler) -> None:
        self.profiler: Profiler | NullProfiler = profiler


def decorator(holder: ProfilerHolder, name: object) -> object:
    """What `annotate(name)` gives: a decorator for a name or None, the annotated function for a function.

    Raises:
        TypeError: by the decorator, for what is neither a function nor a method.
    """
    if callable(name):
        return annotated(holder, name, _own_name(name))
    return lambda function: annotated(holder, function, str(name) if name else _own_name(function))


def _own_name(function: object) -> str:
    return str(getattr(function, "__qualname__", "range"))


def annotated(holder: ProfilerHolder, function: Function, name: str) -> Function:
    """`function` with a range around each run of it: for a coroutine across its awaits, for a generator
    until it is exhausted or closed.

    Raises:
        TypeError: `function` is neither a function nor a method.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return cast(Function, type(function)(annotated(holder, function.__func__, name)))
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"annotate is for functions and methods, not for {function!r}")
    made: Callable[..., object]
    if inspect.iscoroutinefunction(function):
        made = _coroutine(holder, function, name)
    elif inspect.isasyncgenfunction(function):
        made = _async_generator(holder, function, name)
    elif inspect.isgeneratorfunction(function):
        made = _generator(holder, function, name)
    else:
        made = _plain(holder, function, name)
    return cast(Function, functools.update_wrapper(made, function))


def _plain(holder: ProfilerHolder, function: Callable[P, R], name: str) -> Callable[P, R]:
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        profiler = holder.profiler
        if not profiler.active:
            return function(*args, **kwargs)
        with profiler.range(name):
            return function(*args, **kwargs)

    return plain


def _coroutine(
    holder: ProfilerHolder, function: Callable[P, Coroutine[Y, S, R]], name: str
) -> Callable[P, Coroutine[Y, S, R]]:
    async def coroutine(*args: P.args, **kwargs: P.kwargs) -> R:
        profiler = holder.profiler
        if not profiler.active:
            return await function(*args, **kwargs)
        with profiler.range(name):
            return await function(*args, **kwargs)

    return coroutine


def _generator(
    holder: ProfilerHolder, function: Callable[P, Generator[Y, S, R]], name: str
) -> Callable[P, Generator[Y, S, R]]:
    def generator(*args: P.args, **kwargs: P.kwargs) -> Generator[Y, S, R]:
        with holder.profiler.range(name):
            return (yield from function(*args, **kwargs))

    return generator


def _async_generator(
    holder: ProfilerHolder, function: Callable[P, AsyncGenerator[Y, S]], name: str
) -> Callable[P, AsyncGenerator[Y, S]]:
    async def async_generator(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Y, S]:
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
