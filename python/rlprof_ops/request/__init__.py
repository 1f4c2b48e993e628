"""What to profile: steps, workers and ranks as one checked `ProfileRequest`, and the plan of reports it makes.

Pure: standard library and PyYAML only (PyYAML only once a file is read).
"""

from rlprof_ops.request.model import (
    ANY_PHASE,
    BACKENDS,
    PHASES,
    Capture,
    CaptureSpec,
    ProfileRequest,
)
from rlprof_ops.request.plan import Plan, PlanRow, plan
from rlprof_ops.request.problems import Problem, RequestError
from rlprof_ops.request.selectors import first_match
from rlprof_ops.request.steps import Steps, Window

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
