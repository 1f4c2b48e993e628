"""Each call of a method of a labelled Ray actor is a range of its session: `rlprof:<method>`.

So a report of an actor of any trainer shows what it was asked to do and when, adapter or not. The analysis
takes these ranges for parts of a phase, never for one.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from rlprof_ops import env_names

if TYPE_CHECKING:
    from rlprof_ops.runtime.ranges.emitters import RangeEmitter

R = TypeVar("R")
Executor = Callable[..., object]  # (actor, *arguments), as Ray calls it


def install(name: str, module: ModuleType) -> None:
    """Follow the executors of `ray._private.function_manager` in a process that has a session."""
    if not os.environ.get(env_names.NSYS_SESSION):
        return
    from rlprof_ops.runtime.process.hooks import Intercept, attribute, follow

    owner = attribute(module, "FunctionActorManager")
    follow(owner, "_make_actor_method_executor", Intercept("Ray", finish=_as_range))


def _as_range(executor: Executor, arguments: tuple[object, ...], named: dict[str, object]) -> Executor:
    method_name, method = (*arguments[1:], *named.values())[:2]
    if not isinstance(method_name, str):
        return executor
    if method_name.startswith("__") or inspect.isasyncgenfunction(method):
        return executor
    label = f"rlprof:{method_name}"
    from rlprof_ops.runtime.process.hooks import safely

    @functools.wraps(executor)  # Ray reads the attributes that the executor carries
    def call(*arguments: object, **named: object) -> object:
        nvtx = _nvtx()
        if nvtx is None:
            return executor(*arguments, **named)
        token = safely("Ray", nvtx.start, label)
        try:
            result = executor(*arguments, **named)
        except BaseException:
            safely("Ray", nvtx.end, token)
            raise
        if inspect.iscoroutine(result):
            return _until_done(result, nvtx, token)
        safely("Ray", nvtx.end, token)
        return result

    return call


async def _until_done(result: Awaitable[R], nvtx: RangeEmitter, token: object) -> R:
    try:
        return await result
    finally:
        nvtx.end(token)


@functools.lru_cache(maxsize=1)
def _nvtx() -> RangeEmitter | None:
    from rlprof_ops.runtime.ranges.emitters import nvtx_ranges

    return nvtx_ranges()
