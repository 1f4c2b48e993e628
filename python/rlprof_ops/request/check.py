"""The verdict of its backends on a whole request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rlprof_ops import backends, env_names
from rlprof_ops.backends import Where
from rlprof_ops.request.model import CaptureSpec, ProfileRequest
from rlprof_ops.request.problems import Problem, RequestError

_WHEN_NEEDS = {
    env_names.RECORD: "the flight recorder finds what it waits for",
    env_names.ON_DEMAND: "the job's processes do not listen for what is found",
}


def check_request(
    request: ProfileRequest, where: Where = backends.ANYWHERE, knobs: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The warnings on all captures of a request. `knobs`: of the job, where one is to be started.

    Raises:
        RequestError: with every capture that cannot be taken, and where it was written.
    """
    problems, warnings = [], []
    for number, spec in enumerate(request.captures, 1):
        verdict = backends.validate(spec if request.enabled else replace(spec, ranks=()), where)
        place = spec.origin("options")
        which = "" if place not in ("", env_names.REQUEST_JSON) else f"capture {number}: "
        problems += [Problem(which + text, place) for text in verdict.errors]
        if request.enabled and spec.waits:
            problems += [Problem(f"capture {number}: {text}", spec.origin("when")) for text in _deaf(knobs)]
        said = () if verdict.errors else (*verdict.warnings, *_about_the_start(spec))
        warnings += [f"capture {number}: {text}" for text in said]
    if problems:
        raise RequestError(problems)
    return tuple(warnings)


def _deaf(knobs: Mapping[str, str] | None) -> Iterator[str]:
    """Why nothing that is found in the job opens a window."""
    for name, reason in _WHEN_NEEDS.items():
        if knobs and knobs.get(name) == "0":
            yield f"`when` never opens a window with {name}=0: {reason}; leave out one of the two"


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
