"""What several trainers' adapters do: lead the job's steps, and mark a worker's functions as tasks."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from rlprof_ops.runtime.process.hooks import Intercept, Watch, wrapped

_LABELS = ("name", "tag", "message", "role")


def leader(worker: str, rank: int = 0, world_size: int = 1) -> Any:
    """The profiler of the process whose steps are the job's; one that does nothing where nothing is asked."""
    from rlprof_ops.runtime import null_profiler, profiler
    from rlprof_ops.trainers.import_hooks import with_version

    adapter = sys._getframe(1).f_globals.get("__name__", "")  # <the trainer's package>.adapter
    whose = with_version(adapter.rpartition(".")[0].rpartition(".")[2])
    return profiler.lead(worker, rank, world_size, whose) or null_profiler.NullProfiler()


def task(trainer: str, label: str) -> Watch:
    """Each call is a task `label` of this process."""
    return Watch(trainer, functools.partial(begin_task, label))


def begin_task(label: str, /, *_: object, **__: object) -> Any:
    """A task that has begun, None where this process follows no steps."""
    from rlprof_ops.runtime import follower

    following = follower.follow()
    if following is None:
        return None
    found = following.task(label)
    found.__enter__()
    return found


def asyncio_task() -> Any:
    """The task of the event loop that runs in this thread; None without one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def decorated_tasks(trainer: str) -> Intercept:
    """For a function that makes decorators: what they make of a function is a task, by the decorator's label
    or else the function's name."""
    return Intercept(trainer, finish=functools.partial(_decorator, trainer))


def _decorator(trainer: str, decorate: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    given = (*arguments, *map(named.get, _LABELS))
    if any(inspect.isfunction(value) for value in given):
        return decorate  # it decorates by itself
    label = next((value for value in given if value and isinstance(value, str)), None)
    return wrapped(decorate, Intercept(trainer, finish=functools.partial(_decorated, trainer, label)))


def _decorated(
    trainer: str, label: str | None, made: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    (function,) = (*arguments, *named.values())
    natures: tuple[Callable[[Any], bool], ...] = (inspect.iscoroutinefunction, inspect.isgeneratorfunction)
    if any(nature(made) != nature(function) for nature in natures):
        return made  # its call only begins the work
    return wrapped(made, task(trainer, label or str(getattr(function, "__name__", "task"))))
