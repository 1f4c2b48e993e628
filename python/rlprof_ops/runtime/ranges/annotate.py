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
from types import BuiltinFunctionType, MethodType
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar, cast

from rlprof_ops.runtime.current_profiler import CURRENT
from rlprof_ops.runtime.null_profiler import always_idle, check_function
from rlprof_ops.runtime.plain_values import plain_name
from rlprof_ops.runtime.process.event_log import log_once
from rlprof_ops.runtime.process.hooks import dressed

if TYPE_CHECKING:
    from rlprof_ops.runtime.active_profiler import Profiler
    from rlprof_ops.runtime.null_profiler import NullProfiler

P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
S = TypeVar("S")


class ProfilerHolder(Protocol):
    """Has the profiler that a decorated function asks at each call."""

    profiler: Profiler | NullProfiler

    def idle(self) -> bool: ...


class Holder:
    """Where a decorated function finds its profiler when it is called; in another process, that one's
    current profiler.
    """

    __slots__ = ("profiler",)

    def __init__(self, profiler: Profiler | NullProfiler) -> None:
        self.profiler: Profiler | NullProfiler = profiler

    def idle(self) -> bool:
        """Whether nothing is recorded; see `always_idle`."""
        return not self.profiler.active

    idle._torchdynamo_inline = always_idle  # type: ignore[attr-defined]  # torch traces it instead

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return CURRENT.__reduce__()


def decorator(holder: ProfilerHolder, name: object) -> object:
    """What `annotate(name)` gives: a decorator for a name or None, the annotated function for a function.

    Raises:
        TypeError: by the decorator, for what is neither a function nor a method.
    """
    if callable(name) or isinstance(name, (staticmethod, classmethod)):
        return annotated(holder, check_function(name), "")
    text = "" if name is None else plain_name(name)
    return lambda function: annotated(holder, check_function(function), text)


def annotated(holder: ProfilerHolder, function: object, name: str) -> object:
    """`function` with a range around each run of it: for a coroutine across its awaits, for a generator
    until it is exhausted or closed. A method stays a method, a partial a partial.

    What is callable but no function is handed back as it is, and said once: a wrapper would lack what else
    it can do (`cache_clear`, `register_fake`, the parameters of a module).
    """
    if isinstance(function, (staticmethod, classmethod, MethodType)):
        inner = cast(Callable[..., object], annotated(holder, function.__func__, name))
        if isinstance(function, MethodType):
            return MethodType(inner, function.__self__)
        return type(function)(inner)
    name = name or str(getattr(function, "__qualname__", "range"))
    if isinstance(function, BuiltinFunctionType):  # where it stands in a class it is no method, unlike ours
        function = functools.update_wrapper(functools.partial(function), function)
    kind = type(function)
    if isinstance(function, functools.partial) and kind in (functools.partial, _PartialInRange):
        return _PartialInRange.around(function, _in_range(holder, function, name))
    if callable(function) and hasattr(kind, "__code__") and hasattr(kind, "__get__"):  # or what Cython made
        return dressed(function, _in_range(holder, function, name))
    log_once(
        f"annotate leaves a {kind.__module__}.{kind.__qualname__} as it is, without ranges ({name}): annotate"
        " the function in it, or put `with prof.range(...)` where it is called"
    )
    return function


class _PartialInRange(functools.partial[object]):
    """A partial whose calls have a range; pickled, it is the bare partial."""

    __slots__ = ("in_range",)
    in_range: Callable[..., object]

    @classmethod
    def around(cls, bare: functools.partial[object], in_range: Callable[..., object]) -> _PartialInRange:
        made = cls(bare.func, *bare.args, **bare.keywords)
        made.__dict__.update(bare.__dict__)
        made.in_range = in_range
        return made

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        return self.in_range(*args, **kwargs)

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial, *super().__reduce__()[1:]


def _in_range(holder: ProfilerHolder, function: Callable[..., object], name: str) -> Callable[..., object]:
    """A function of the nature of `function` that runs it in a range."""
    if inspect.iscoroutinefunction(function):
        return _coroutine(holder, function, name)
    if inspect.isasyncgenfunction(function):
        return _async_generator(holder, function, name)
    if inspect.isgeneratorfunction(function):
        return _generator(holder, function, name)
    return _plain(holder, function, name)


def _plain(holder: ProfilerHolder, function: Callable[P, R], name: str) -> Callable[P, R]:
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        if holder.idle():
            return function(*args, **kwargs)
        with holder.profiler.range(name):
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
