"""The verdict of its backends on a whole request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rlprof_ops import backends, env_names
from rlprof_ops.backends import Where
from rlprof_ops.request.model import CaptureSpec, ProfileRequest
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
        said = () if verdict.errors else (*verdict.warnings, *_about_the_start(spec))
        warnings += [f"capture {number}: {text}" for text in said]
    if problems:
        raise RequestError(problems)
    return tuple(warnings)


def refuse_unheard(request: ProfileRequest, knobs: Mapping[str, str]) -> None:
    """Raises `RequestError` where captures wait for what the flight recorder finds, and it is off."""
    waiting = [
        Problem(
            f"capture {number}: `when` never opens a window with {env_names.RECORD}=0: the flight recorder"
            " finds what it waits for; leave out one of the two",
            spec.origin("when"),
        )
        for number, spec in enumerate(request.captures, 1)
        if spec.waits
    ]
    if waiting and request.enabled and knobs.get(env_names.RECORD) == "0":
        raise RequestError(waiting)


def _about_the_start(spec: CaptureSpec) -> Iterator[str]:
    """How far `on_error: fail` and `env` reach, which count when a worker is started."""
    backend = backends.get(spec.backend)
    if spec.on_error == "fail" and backend.wrap:
        yield (
            f"on_error: fail: a worker that cannot be started under {backend.title} does not start; a window"
            " that fails later is missing, and training goes on"
        )
    elif spec.on_error == "fail":
        yield (
            f"on_error: fail has no effect: {backend.name} starts no worker, and a window that fails is"
            " missing while training goes on; only a profiler that workers are started under has it"
        )
    if spec.env and not backend.wrap:
        yield (
            "env reaches actors that the capture selects, COMMAND and what `rlprof wrap` starts; a Ray task,"
            f" or a script that is started without these, is recorded by {backend.name} without it"
        )
