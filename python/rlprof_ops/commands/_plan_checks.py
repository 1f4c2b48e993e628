"""What only the backends know of a request: options they refuse, and ones that will have no effect."""

from __future__ import annotations

from rlprof_ops.request import Problem, ProfileRequest, RequestError
from rlprof_ops.request.problems import nearest


def check_options(request: ProfileRequest) -> None:
    """Raise RequestError for options that a training process would refuse; the workers' machines may have
    a GPU.
    """
    from rlprof_ops.runtime import request_checks

    found = []
    for spec in request.captures:
        alone = ProfileRequest((spec,), enabled=request.enabled)
        messages = [message.partition(": ")[2] for message in request_checks.problems(alone, gpu=True)]
        found += [Problem(message, spec.origin("options")) for message in messages]
    if found:
        raise RequestError(found)


def option_warnings(request: ProfileRequest) -> tuple[str, ...]:
    """nsys options that rlprof decides itself, and names that its nsys does not have."""
    from rlprof_ops.backends import nsight

    known = sorted(nsight.LAUNCH_OPTIONS | nsight.START_OPTIONS)
    found = []
    for number, spec in enumerate(request.captures, 1):
        if spec.backend == "rocprof_sys":
            found.append(
                f"capture {number}: rlprof takes no rocprof_sys captures itself; render the request for RLinf"
            )
        if spec.backend != "nsight":
            continue
        for name in (*spec.options, *spec.flags):
            if name in nsight.OURS:
                found.append(
                    f"capture {number}: option {name!r} has no effect: steps and output_dir decide it"
                )
            elif name not in known:
                found.append(f"capture {number}: nsys 2023.4 has no option {name!r}.{nearest(name, known)}")
    return tuple(found)
