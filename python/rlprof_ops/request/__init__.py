"""What to profile: steps, workers and ranks as one checked `ProfileRequest`, and the plan of reports it
makes.

Pure: standard library and PyYAML only (PyYAML only once a file is read), since every training process imports
this.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlprof_ops import env_names
from rlprof_ops.request.model import ANY_PHASE, PHASES, Capture, CaptureSpec, ProfileRequest
from rlprof_ops.request.problems import Problem, RequestError
from rlprof_ops.request.selectors import first_match, server_of
from rlprof_ops.request.steps import Steps, Window
from rlprof_ops.request.when import When

if TYPE_CHECKING:
    from rlprof_ops.request.planning import Plan, PlanRow, plan

__all__ = [
    "ANY_PHASE",
    "PHASES",
    "Capture",
    "CaptureSpec",
    "Plan",
    "PlanRow",
    "Problem",
    "ProfileRequest",
    "RequestError",
    "Steps",
    "When",
    "Window",
    "first_match",
    "load_request",
    "plan",
    "request_from_dict",
    "request_from_json",
    "server_of",
]


def load_request(
    path: str | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ProfileRequest:
    """Read the request of a file, an environment and CLI flags; later ones win: file < NRL_* < RLPROF_* <
    flags.

    Args:
        path: a YAML file; default `env["RLPROF_REQUEST"]`.
        env: usually `os.environ`; None reads no variable.
        overrides: flags by field name, e.g. `{"steps": "3:5"}`; None values are not set.

    Raises:
        RequestError: with all problems and their origins.
    """
    from rlprof_ops.request.load import load

    return load(path, env or {}, overrides or {})


def request_from_dict(data: Any, origin: str = "") -> ProfileRequest:
    """Check a request in plain data as a file is checked.

    Raises:
        RequestError: with all problems.
    """
    from rlprof_ops.request.build import build

    return build(data, origin=origin)


def request_from_json(text: str, origin: str = env_names.REQUEST_JSON) -> ProfileRequest:
    """Read what `ProfileRequest.to_json` wrote. A process that asks again for the same text gets the same
    request: it is parsed once.

    Raises:
        RequestError: with all problems.
    """
    return _from_json(text, origin)


@functools.lru_cache(maxsize=8)
def _from_json(text: str, origin: str) -> ProfileRequest:
    from rlprof_ops.request.build import build_from_json

    return build_from_json(text, origin)


def __getattr__(name: str) -> Any:
    if name in ("Plan", "PlanRow", "plan"):  # not needed in a training process
        from rlprof_ops.request import planning

        return getattr(planning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
