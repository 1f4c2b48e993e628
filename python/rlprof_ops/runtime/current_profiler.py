"""The profiler that this process has made last: where a decorated function finds it when it is called, in
whatever process it has come to."""

from __future__ import annotations

from rlprof_ops.runtime.null_profiler import NullProfiler, always_idle

TYPE_CHECKING = False  # see rlprof_ops/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable

    from rlprof_ops.runtime.active_profiler import Profiler

# What a function that is carried to another process finds there; nothing is recorded where the package is
# not.
_THERE = (
    "__import__('rlprof_ops.runtime.current_profiler', fromlist=['CURRENT']).CURRENT"
    " if __import__('importlib.util').util.find_spec('rlprof_ops') else"
    " __import__('types').SimpleNamespace(profiler=__import__('types').SimpleNamespace("
    "active=False, range=lambda name: __import__('contextlib').nullcontext()), idle=lambda: True)"
)


class Current:
    """Holds the profiler that `from_env` made last in this process, for decorators that were applied before
    it was there. Pickled and loaded, it is that of the process that loads it.
    """

    __slots__ = ("profiler",)

    def __init__(self) -> None:
        self.profiler: Profiler | NullProfiler = NullProfiler()

    def idle(self) -> bool:
        """Whether nothing is recorded; see `always_idle`."""
        return not self.profiler.active

    idle._torchdynamo_inline = always_idle  # type: ignore[attr-defined]  # torch traces it instead

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return eval, (_THERE,)


CURRENT = Current()


def current() -> Profiler | NullProfiler:
    """The profiler that this process has made last, or the null profiler."""
    return CURRENT.profiler
