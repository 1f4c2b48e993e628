"""What several trainers' adapters do: lead the job's steps, and mark a worker's functions as tasks."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from rlprof_ops.runtime.process.hooks import Intercept, Watch, wrapped

_LABELS = ("name", "tag", "message", "role")


class LeadingLoop:
    """The step that runs in the process that leads the job, and its phases."""

    def __init__(self) -> None:
        self.profiler: Any = None
        self.step: int | None = None

    def lead(self, worker: str, rank: int = 0, world_size: int = 1) -> None:
        """The steps of this process are the job's, from the first call on."""
        if self.profiler is None:
            from rlprof_ops.runtime import null_profiler, profiler
            from rlprof_ops.trainers.import_hooks import with_version

            adapter = sys._getframe(1).f_globals.get("__name__", "")  # <the trainer's package>.adapter
            whose = with_version(adapter.rpartition(".")[0].rpartition(".")[2])
            found = profiler.lead(worker, rank, world_size, whose)
            self.profiler = found or null_profiler.NullProfiler()  # where nothing is asked

    def begin_step(self, step: int) -> bool:
        """Step `step` begins, and one before it ends; False where it has begun already, or nobody leads."""
        if step == self.step or self.profiler is None:
            return False
        self.end_step()
        self.step = step
        self.profiler.start_step(step)
        return True

    def end_step(self) -> None:
        """The step that runs has ended."""
        if self.step is not None:
            step, self.step = self.step, None
            self.profiler.stop_step(step)

    def phase(self, name: str) -> Any:
        """The range of a phase that has begun; None outside of a step, and where nobody asks for phases."""
        if self.step is None or not self.profiler.active:
            return None
        found = self.profiler.range(name)
        found.__enter__()
        return found


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


def piece(trainer: str) -> Watch:
    """Each call is a piece of a task's work: torch's windows inside the step may open and close around it."""
    return Watch(trainer, _piece_begins, _piece_ended)


def _piece_begins(*_: object, **__: object) -> Any:
    from rlprof_ops.runtime import follower

    following = follower.follow()
    if following is not None:
        following.visit()
    return following


def _piece_ended(following: Any, _: object) -> None:
    following.visit()


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
