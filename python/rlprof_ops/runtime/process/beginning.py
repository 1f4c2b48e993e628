"""What is told of a selected worker before any window: that it was created, and how its process began.

A window of a worker that never came to run in its session has nobody who could speak of it. So whoever
creates an actor notes it (`selected`), the process notes that it began as it should (`begun`), and one that
was started without nsys says so as `failed` windows. Harvest misses what was selected and never began.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rlprof_ops import backends, env_names
from rlprof_ops.runtime import step_clock
from rlprof_ops.runtime.process import session_file
from rlprof_ops.runtime.process.worker_identity import WorkerKey, find_identity, is_ray_worker

SELECTED, BEGUN = "selected", "begun"
_NO_SESSION = "-"


def selected(key: WorkerKey) -> None:
    """An actor with this `rlprof` key was created."""
    if key.get("worker") and key.get("rank") is not None:
        step_clock.note(SELECTED, worker=key["worker"], rank=key["rank"])


def begins() -> None:
    """This process begins, before its program: say whose session it is, or why it is in none."""
    env = os.environ
    if env_names.NSYS_SESSION in env:
        session_file.register()
    elif not env.get(env_names.WORKER) or not env.get(env_names.NODE_DIR):
        return
    elif env.get(env_names.NOT_WRAPPED):
        _was_not_wrapped(env[env_names.NOT_WRAPPED])
        return
    if is_ray_worker() and (env_names.NSYS_SESSION not in env or session_file.registered(env)):
        place = find_identity(None, None, None, env)
        step_clock.note(BEGUN, worker=place.worker, rank=place.rank)


def _was_not_wrapped(reason: str) -> None:
    """Write down the windows that this worker cannot have. COMMAND does that itself, when its adapter leads;
    children of the worker are no workers.
    """
    env = os.environ
    if env.get(env_names.LEADS) == "1" or session_file.claimed(env, _NO_SESSION) not in (None, os.getpid()):
        return
    env[env_names.SESSION_PID] = f"{os.getpid()}:{_NO_SESSION}"
    fail_windows(env, reason)


def fail_windows(env: Mapping[str, str], reason: str, other: WorkerKey | None = None) -> None:
    """Write down that the worker which `env` names has none of its windows that need a profiler around it;
    of an `other` worker, in whose process nothing of ours runs, that it has no window at all.
    """
    from rlprof_ops.runtime.process.event_log import EventLog
    from rlprof_ops.runtime.trainer_request import request_of

    request = request_of(env)
    worker, rank = (other["worker"], other["rank"]) if other else (None, None)
    place = find_identity(worker, rank, None, env)
    specs = request.for_worker(place.worker, place.rank) if request else ()
    lost = [spec for spec in specs if other or backends.wraps(spec.backend)]
    if not lost:
        return
    events = EventLog(place.events / f"{place.stem}.session.jsonl")
    events.registered(place, (spec.backend for spec in lost))
    for spec in lost:
        events.failed(spec, reason)
