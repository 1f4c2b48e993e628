"""What to profile: steps, workers and ranks as one checked `ProfileRequest`, and the plan of reports it makes.

Pure: standard library and PyYAML only (PyYAML only once a file is read), since every training process imports this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlprof_ops.request.model import ANY_PHASE, BACKENDS, PHASES, Capture, CaptureSpec, ProfileRequest
from rlprof_ops.request.problems import Problem, RequestError
from rlprof_ops.request.selectors import first_match
from rlprof_ops.request.steps import Steps, Window

if TYPE_CHECKING:
    from rlprof_ops.request.planning import Plan, PlanRow, plan

__all__ = [
    "ANY_PHASE",
    "BACKENDS",
    "PHASES",
    "Capture",
    "CaptureSpec",
    "Plan",
    "PlanRow",
    "Problem",
    "ProfileRequest",
    "RequestError",
    "Steps",
    "Window",
    "first_match",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name in ("Plan", "PlanRow", "plan"):  # not needed in a training process
        from rlprof_ops.request import planning

        return getattr(planning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
