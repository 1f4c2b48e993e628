"""The profiler where nothing was asked: the whole interface, doing nothing."""

from __future__ import annotations

TYPE_CHECKING = False  # see rlprof_ops/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar, overload

    from rlprof_ops.runtime.ranges.range_times import RangeTimes

    Function = TypeVar("Function")


class NullContext:
    """A context manager that does nothing and may be shared and nested."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        return None


NULL_CONTEXT = NullContext()


class NullProfiler:
    """Same methods as `Profiler`. `annotate` hands the function back, so a decorated call costs nothing at
    all.
    """

    __slots__ = ()
    active = False
    closed = True
    any_open = False
    leads = False

    def step(self, step: int) -> NullContext:
        return NULL_CONTEXT

    def start_step(self, step: int, began_s: float | None = None) -> bool:
        return False

    def stop_step(self, step: int | None = None) -> None:
        return None

    def visit_own(self) -> None:
        return None

    def visit_parts(self, opens: bool = True) -> None:
        return None

    def prepare_parts(self, step: int) -> None:
        pass

    def has_parts(self, step: int) -> bool:
        return False

    def tell_parts(self, step: int, began_s: float, runs: bool) -> None:
        return None

    def tell_phases(self, step: int, began_s: Mapping[str, float]) -> None:
        return None

    def abort_step(self) -> None:
        return None

    def range(self, name: str) -> NullContext:
        return NULL_CONTEXT

    if TYPE_CHECKING:

        @overload
        def annotate(self, name: str | None = None) -> Callable[[Function], Function]: ...
        @overload
        def annotate(self, name: Function) -> Function: ...

    def annotate(self, name: object = None) -> object:
        return name if callable(name) else _unchanged

    def metrics(self, reset: bool = False) -> dict[str, RangeTimes]:
        return {}

    def close(self) -> None:
        return None

    def __enter__(self) -> NullProfiler:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        return None


def _unchanged(function: Function) -> Function:
    return function
