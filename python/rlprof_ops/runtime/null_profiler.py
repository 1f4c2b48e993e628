"""The profiler where nothing was asked: the whole interface, doing nothing."""

from __future__ import annotations

from typing import Any, TypeVar

Function = TypeVar("Function")


class NullContext:
    """A context manager that does nothing and may be shared and nested."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        return None


NULL_CONTEXT = NullContext()


class NullProfiler:
    """Same methods as `Profiler`. `annotate` hands the function back, so a decorated call costs nothing at
    all.
    """

    __slots__ = ()
    active = False
    closed = True

    def step(self, step: int) -> NullContext:
        return NULL_CONTEXT

    def start_step(self, step: int) -> bool:
        return False

    def stop_step(self, step: int | None = None) -> None:
        return None

    def abort_step(self) -> None:
        return None

    def range(self, name: str) -> NullContext:
        return NULL_CONTEXT

    def annotate(self, name: Any = None) -> Any:
        return name if callable(name) else _unchanged

    def metrics(self, reset: bool = False) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        return None

    def __enter__(self) -> NullProfiler:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        return None


def _unchanged(function: Function) -> Function:
    return function
