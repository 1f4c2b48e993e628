"""What adapters of several trainers put around a worker's functions: a task of the process's follower."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from rlprof_ops.frameworks.adapter import safely


def as_task(trainer: str, label: str) -> Callable[[Any], Any]:
    """A decorator: each call of a function, or of a coroutine function, is a task `label` of this process."""

    def decorator(function: Any) -> Any:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*arguments: Any, **named: Any) -> Any:
                begun = _begin(trainer, label)
                try:
                    return await function(*arguments, **named)
                finally:
                    _end(trainer, begun)

            return awaited

        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            begun = _begin(trainer, label)
            try:
                return function(*arguments, **named)
            finally:
                _end(trainer, begun)

        return called

    return decorator


def _begin(trainer: str, label: str) -> Any:
    from rlprof_ops.runtime import follower

    found = safely(trainer, follower.task, label)
    if found is not None:
        safely(trainer, found.__enter__)
    return found


def _end(trainer: str, begun: Any) -> None:
    if begun is not None:
        safely(trainer, begun.__exit__, None, None, None)
