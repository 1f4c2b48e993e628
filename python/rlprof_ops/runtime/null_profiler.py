"""The profiler where nothing was asked: the whole interface, doing nothing."""

from __future__ import annotations

TYPE_CHECKING = False  # see rlprof_ops/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
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


def always_idle(holder: object) -> bool:
    """Whether nothing is recorded, in code that torch compiles: a graph holds what is annotated alone, and a
    window has nothing compiled anew. It stands for a method of ours and not for the annotated function: what
    is wrapped once more by `functools.wraps` would take it along, and torch leave out that wrapper.
    """
    return True


def compiled_range(profiler: object, name: object) -> AbstractContextManager[None]:
    """What `range` is in code that torch compiles: nothing, for a graph holds no range, and a window would
    have it compiled anew.
    """
    from contextlib import nullcontext

    return nullcontext()


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

    range._torchdynamo_inline = compiled_range  # type: ignore[attr-defined]  # torch traces it instead

    if TYPE_CHECKING:

        @overload
        def annotate(self, name: str | None = None) -> Callable[[Function], Function]: ...
        @overload
        def annotate(self, name: Function) -> Function: ...

    def annotate(self, name: object = None) -> object:
        whole = callable(name) or isinstance(name, (staticmethod, classmethod))
        return check_function(name) if whole else check_function

    def metrics(self, reset: bool = False) -> dict[str, RangeTimes]:
        return {}

    def close(self) -> None:
        return None

    def __enter__(self) -> NullProfiler:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        return None


def check_function(function: Function) -> Function:
    """`function`, unchanged.

    Raises:
        TypeError: it is neither a function nor a method; so one hears of it before a job is watched.
    """
    plain = callable(function) or isinstance(function, (staticmethod, classmethod))
    if isinstance(function, type) or not plain:
        raise TypeError(f"annotate is for functions and methods, not for {function!r}")
    return function
