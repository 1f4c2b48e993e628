"""What to change in a Ray worker's runtime-env context so that it starts under nsys."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlprof_ops import env_names
from rlprof_ops.backends import nsight
from rlprof_ops.rayenv.worker_selection import Identity
from rlprof_ops.rayenv.wrap.nsys_command import NsysCommand, range_command, session_command

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec, ProfileRequest


class WrapError(Exception):
    """A selected worker cannot be profiled on this node and the request says to fail then."""


def wrap_context(
    context: Any, worker: str, rank: int | None, env: Mapping[str, str], refused: str | None = None
) -> bool:
    """Change `context` (py_executable, env_vars) for one worker by the request in `env`; whether nsys was
    wrapped around it.

    `refused` is why nsys cannot be used although it is there. Raises `WrapError` when nsys is missing or
    refused and a matching capture has `on_error: fail`.
    """
    text = env.get(env_names.REQUEST_JSON)
    request = None
    if text:
        from rlprof_ops.request import request_from_json

        request = request_from_json(text)
    specs = specs_for(request, worker, rank, env)
    if not specs:
        return False
    for spec in specs:
        context.env_vars.update(spec.env)
    context.env_vars.update({env_names.WORKER: worker, env_names.RANK: "" if rank is None else str(rank)})
    wanted = [spec for spec in specs if spec.backend == "nsight"]
    if not wanted:
        return False
    nsys = nsight.find(env)
    if nsys is None or refused:
        reason = refused or nsys_is_missing(worker, rank, env)
        if any(spec.on_error == "fail" for spec in wanted):
            raise WrapError(reason)
        context.env_vars[env_names.NOT_WRAPPED] = reason  # the worker's runtime writes the `failed` event
        return False
    command = nsys_command(Identity(worker, rank), wanted[0], env, nsys)
    context.py_executable = command.shell(context.py_executable)
    return True


def specs_for(
    request: ProfileRequest | None, worker: str, rank: int | None, env: Mapping[str, str]
) -> tuple[CaptureSpec, ...]:
    """The captures that select a worker. With `RLPROF_ON_DEMAND=nsight` one without a window is among them:
    `rlprof capture` may ask for one later.
    """
    specs = request.for_worker(worker, rank) if request else ()
    on_demand = env.get(env_names.ON_DEMAND, "").strip().lower() == "nsight"
    if on_demand and not any(spec.backend == "nsight" for spec in specs):
        from rlprof_ops.request import CaptureSpec

        return (*specs, CaptureSpec(workers=(worker,)))
    return tuple(specs)


def nsys_command(identity: Identity, spec: CaptureSpec, env: Mapping[str, str], nsys: str) -> NsysCommand:
    """The command of one worker: with a capture range where the request names one, else a session."""
    make = range_command if nsight.capture_range(spec) else session_command
    return make(identity, spec, env, nsys)


def nsys_is_missing(worker: str, rank: int | None, env: Mapping[str, str]) -> str:
    """One message for a node without nsys: who needs it, and what to do."""
    node = env.get(env_names.NODE) or socket.gethostname()
    return (
        f"no nsys on node {node} for worker {worker!r} rank {rank}: {nsight.why_missing(env)}. Install"
        " nsight-systems-cli there (or in the container), set RLPROF_NSYS to it, or set `on_error: continue`"
        " in the request to train unprofiled"
    )
