"""The exception that a process of a process group ends with, told at its time: of a job's failures the first
one counts, and the others are its echoes.
"""

from __future__ import annotations

import atexit
import sys
import traceback
from types import TracebackType

from rlprof_ops.runtime import step_clock

RAISED, IN_GROUP, EXITED = "raised", "in_group", "exited"
OUT_OF_MEMORY = "out_of_memory"  # the kernel has killed it; by the recorder of its node
_MOST_ERROR, _MOST_TRACE = 500, 4000
_followed = False  # a fork inherits it with the hook


def follow_failures() -> None:
    """Tell what this process raises from now on, in its main thread or in a Ray task; once a process."""
    global _followed
    if _followed:
        return
    _followed = True
    from rlprof_ops.runtime.process.hooks import Watch, follow, safely

    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        safely("a failure", _tell, error, "".join(traceback.format_exception(kind, error, trace)))
        before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(safely, "a failure", step_clock.note, EXITED)
    if "ray.exceptions" in sys.modules:
        follow(sys.modules["ray.exceptions"].RayTaskError, "__init__", Watch("Ray", _of_task))


def _of_task(
    wrapping: object,
    function: object = "",
    trace: object = "",
    cause: object = None,
    *_: object,
    **__: object,
) -> None:
    """Ray wraps what a task has raised."""
    if isinstance(cause, Exception) and sys.exc_info()[1] is not None:  # else it comes from another process
        _tell(cause, str(trace))


def _tell(error: BaseException, trace: str) -> None:
    if isinstance(error, Exception):
        text = f"{type(error).__name__}: {error}"[:_MOST_ERROR]
        step_clock.note(RAISED, error=text, trace=trace[-_MOST_TRACE:])
