"""The verdict of its backends on a whole request."""

from __future__ import annotations

from dataclasses import replace

from rlprof_ops import backends, env_names
from rlprof_ops.backends import Where
from rlprof_ops.request.model import ProfileRequest
from rlprof_ops.request.problems import Problem, RequestError


def check_request(request: ProfileRequest, where: Where = backends.ANYWHERE) -> tuple[str, ...]:
    """The warnings on all captures of a request.

    Raises:
        RequestError: with every capture that cannot be taken, and where it was written.
    """
    problems, warnings = [], []
    for number, spec in enumerate(request.captures, 1):
        verdict = backends.validate(spec if request.enabled else replace(spec, ranks=()), where)
        place = spec.origin("options")
        which = "" if place not in ("", env_names.REQUEST_JSON) else f"capture {number}: "
        problems += [Problem(which + text, place) for text in verdict.errors]
        warnings += [f"capture {number}: {text}" for text in verdict.warnings]
    if problems:
        raise RequestError(problems)
    return tuple(warnings)
