"""How a capture is launched, gated, named and checked: nsight, torch, rocprof_sys, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlprof_ops import env_names
from rlprof_ops.backends.base import EMPTY, OK, TRUNCATED, Backend, Check, Verdict, Where
from rlprof_ops.errors import UsageError
from rlprof_ops.words import did_you_mean

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec, ProfileRequest

NAMES = ("nsight", "torch", "rocprof_sys", "memory")
ANYWHERE = Where()

__all__ = [
    "ANYWHERE",
    "EMPTY",
    "NAMES",
    "OK",
    "TRUNCATED",
    "Backend",
    "Check",
    "Verdict",
    "Where",
    "check_request",
    "get",
    "validate",
]


def get(name: str) -> Backend:
    """The backend called `name`; raises `UsageError` with the nearest name for an unknown one."""
    if name not in NAMES:
        hint = did_you_mean(name, NAMES)
        raise UsageError(f"unknown backend {name!r}: allowed are {', '.join(NAMES)}.{hint}")
    # One import a name instead of import_module(f"..."): type checkers and packagers see them.
    if name == "nsight":
        from rlprof_ops.backends.nsight import BACKEND
    elif name == "torch":
        from rlprof_ops.backends.torch import BACKEND
    elif name == "memory":
        from rlprof_ops.backends.memory import BACKEND
    else:
        from rlprof_ops.backends.rocprof_sys import BACKEND
    return BACKEND


def validate(spec: CaptureSpec, where: Where = ANYWHERE) -> Verdict:
    """The verdict of a capture's backend: the plan, the job, the dialects and the workers ask here."""
    return get(spec.backend).validate(spec, where)


def check_request(request: ProfileRequest, where: Where = ANYWHERE) -> tuple[str, ...]:
    """The warnings on all captures of a request.

    Raises:
        RequestError: with every capture that cannot be taken, and where it was written.
    """
    from rlprof_ops.request.problems import Problem, RequestError

    problems, warnings = [], []
    for number, spec in enumerate(request.captures, 1):
        verdict = validate(spec if request.enabled else _off(spec), where)
        place = spec.origin("options")
        which = "" if place not in ("", env_names.REQUEST_JSON) else f"capture {number}: "
        problems += [Problem(which + text, place) for text in verdict.errors]
        warnings += [f"capture {number}: {text}" for text in verdict.warnings]
    if problems:
        raise RequestError(problems)
    return tuple(warnings)


def _off(spec: CaptureSpec) -> CaptureSpec:
    from dataclasses import replace

    return replace(spec, ranks=())
