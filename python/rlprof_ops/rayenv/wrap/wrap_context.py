"""What to change in a Ray worker's runtime-env context so that it starts under its profiler."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlprof_ops import backends, env_names
from rlprof_ops.backends.contract import wrap_of
from rlprof_ops.backends.wrapping import CannotWrap, Identity, worker_variables
from rlprof_ops.runtime.trainer_request import request_of

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec, ProfileRequest


class WrapError(Exception):
    """A selected worker cannot be profiled on this node and the request says to fail then."""


def wrap_context(
    context: Any, worker: str, rank: int | None, env: Mapping[str, str], refused: str | None = None
) -> str:
    """Change `context` (py_executable, env_vars) for one worker by the request in `env`; the title of the
    profiler that was wrapped around it, or "".

    `refused` is why the profiler cannot be used although it is there. Raises `WrapError` when it is missing
    or refused and a matching capture has `on_error: fail`.
    """
    text = env.get(env_names.REQUEST_JSON)
    specs = specs_for(request_of(env), worker, rank, env)
    if not specs:
        return ""
    for spec in specs:
        context.env_vars.update(spec.env)
    context.env_vars.update(worker_variables(worker, rank))
    chosen = wrapping_spec(specs)
    if chosen is None:
        return ""
    backend = backends.get(chosen.backend)
    wrap = wrap_of(backend)
    assert wrap is not None
    try:
        if refused:
            raise CannotWrap(refused)
        wrap.make(Identity(worker, rank), chosen, env, context.env_vars).apply(context)
        find_libraries(worker, context.env_vars)
    except CannotWrap as error:
        if any(spec.on_error == "fail" for spec in specs if spec.backend == chosen.backend):
            raise WrapError(str(error)) from None
        context.env_vars[env_names.NOT_WRAPPED] = str(error)  # the worker's runtime writes `failed` events
        return ""
    if not backend.windows_from_outside and text:  # its process opens them: it has to know them too
        context.env_vars.setdefault(env_names.REQUEST_JSON, text)
    return backend.title


def find_libraries(worker: str, variables: dict[str, str]) -> None:
    """Give a worker under a profiler the folders of libraries that its trainer says it needs then."""
    from rlprof_ops.trainers.nemo_rl.nemo_rl_names import library_path

    before = variables.get("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
    path = library_path(worker, os.uname().machine, before)
    if path != before:
        variables["LD_LIBRARY_PATH"] = path


def wrapping_spec(specs: Sequence[CaptureSpec]) -> CaptureSpec | None:
    """The first capture whose profiler has to start the process: a process has one. What this node does not
    know starts nothing.
    """
    return next((spec for spec in specs if backends.wraps(spec.backend)), None)


def specs_for(
    request: ProfileRequest | None, worker: str, rank: int | None, env: Mapping[str, str]
) -> tuple[CaptureSpec, ...]:
    """The captures that select a worker. Where `RLPROF_ON_DEMAND` names a backend that has to start the
    process, one of it without a window is among them: `rlprof capture` may ask for one later.
    """
    specs = request.for_worker(worker, rank) if request else ()
    wanted = env.get(env_names.ON_DEMAND, "").strip().lower()
    if backends.wraps(wanted) and not any(spec.backend == wanted for spec in specs):
        from rlprof_ops.request import CaptureSpec

        return (*specs, CaptureSpec(backend=wanted, workers=(worker,)))
    return tuple(specs)
