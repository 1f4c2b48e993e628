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
    from rlprof_ops.frameworks.adapter import attribute, wrap

    wrap(attribute(module, "FunctionActorManager"), "_make_actor_method_executor", _executor)


def _executor(before: Callable[..., Executor]) -> Callable[..., Executor]:
    def make(self: object, method_name: str, method: Callable[..., object]) -> Executor:
        executor = before(self, method_name, method)
        if method_name.startswith("__") or inspect.isasyncgenfunction(method):
            return executor
        return _as_range(executor, method_name)

    return make


def _as_range(executor: Executor, method_name: str) -> Executor:
    label = f"rlprof:{method_name}"

    @functools.wraps(executor)  # Ray reads the attributes that the executor carries
    def call(*arguments: object, **named: object) -> object:
        nvtx = _nvtx()
        if nvtx is None:
            return executor(*arguments, **named)
        token = nvtx.start(label)
        try:
            result = executor(*arguments, **named)
        except BaseException:
            nvtx.end(token)
            raise
        if inspect.iscoroutine(result):
            return _until_done(result, nvtx, token)
        nvtx.end(token)
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
