"""The step gate and the ranges of one training process: `prof = profiler.from_env(worker=…, rank=…)`, `with
prof.step(n)`.

Nothing asked: `from_env` hands out a `NullProfiler`, whose `annotate` returns the function unchanged. A
profiler that fails costs one log line and an event for the manifest; training goes on.
"""

from __future__ import annotations

import os
import sys

from rlprof_ops import env_names
from rlprof_ops.runtime.current_profiler import CURRENT
from rlprof_ops.runtime.current_profiler import current as current
from rlprof_ops.runtime.null_profiler import NullProfiler

TYPE_CHECKING = False  # see rlprof_ops/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar, overload

    from rlprof_ops.request import ProfileRequest
    from rlprof_ops.runtime.active_profiler import Profiler
    from rlprof_ops.runtime.marks import NowFile
    from rlprof_ops.runtime.process.worker_identity import WorkerIdentity

    Function = TypeVar("Function")

# What a request's folders count from, since trainers change theirs later (hydra.job.chdir).
try:
    _BEGAN_IN = os.getcwd()
except OSError:  # it was removed
    _BEGAN_IN = ""
# Any of these set: somebody may have asked for something, and the request is worth parsing.
_ASKING = (
    env_names.REQUEST_JSON,
    env_names.REQUEST,
    "RLPROF_STEPS",
    *env_names.NRL_STEP_RANGE.values(),
    *env_names.NRL_WORKER_PATTERNS.values(),
)
# Any of these: there is work for a profiler although no capture is planned.
_LISTENING = (env_names.METRICS, env_names.ON_DEMAND, env_names.RECORD, env_names.TRACKERS)

_TASK = (
    "Ray starts tasks in processes that are there already, none of them under a profiler: put the loop into"
    " an actor to have it recorded, or take it with the torch backend"
)


def _concerned() -> bool:
    return any(map(os.environ.get, _ASKING)) or any(
        os.environ.get(name, "0") not in ("0", "") for name in _LISTENING
    )


def request_from_env(env: Mapping[str, str]) -> ProfileRequest | None:
    """The request that reached this process: what the job checked, else what the variables say; None when
    nothing is asked.

    Raises `RequestError` for a request that does not parse: `from_env` logs it, a driver may want to stop.
    """
    if not any(env.get(name) for name in _ASKING):
        return None
    from rlprof_ops.request import load_request, request_from_json

    text = env.get(env_names.REQUEST_JSON)
    request = request_from_json(text) if text else load_request(env=env)
    return request if request else None


def from_env(
    worker: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    without: tuple[str, ...] = (),
    follows: bool = False,
) -> Profiler | NullProfiler:
    """The profiler of this process, from the job's request. Asked again for the same worker and rank, it is
    the same one.

    Args:
        worker: the worker's kind, e.g. "policy_worker"; default: as the runtime env named it.
        rank: index within that kind; default: as the runtime env named it, then `RANK`.
        world_size: workers of that kind, for the manifest.
        without: backends that somebody else takes in this process (adapters: what the supervisor opens).
        follows: the process takes its steps from the job's clock, so it does not lead, whatever it inherits.

    Never raises: a request that cannot be read is logged and nothing is profiled.
    """
    if not _concerned():
        return NullProfiler()
    if os.environ.get(env_names.WORKER) and "ray" in sys.modules:
        from rlprof_ops.runtime.process.ray_children import keep_profiling

        keep_profiling()
    return _or_nothing(
        lambda: _made(request_from_env(os.environ), worker, rank, world_size, True, without, follows)
    )


def from_request(
    request: ProfileRequest | None,
    worker: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Profiler | NullProfiler:
    """Like `from_env`, for a `ProfileRequest` at hand; always a new profiler. Never raises."""
    return _or_nothing(lambda: _made(request, worker, rank, world_size, reuse=False))


def _or_nothing(make: Callable[[], Profiler | NullProfiler]) -> Profiler | NullProfiler:
    """What `make` makes; where that fails nothing is profiled, and training goes on."""
    from rlprof_ops.host.threads.time_limits import time_limits_wait

    with time_limits_wait():
        try:
            return make()
        except Exception as error:
            from rlprof_ops.runtime.process.event_log import log

            log(f"nothing is profiled in this process: {type(error).__name__}: {error}")
            return NullProfiler()


def _made(
    request: ProfileRequest | None,
    worker: str | None,
    rank: int | None,
    world_size: int | None,
    reuse: bool,
    without: tuple[str, ...] = (),
    follows: bool = False,
) -> Profiler | NullProfiler:
    from rlprof_ops.runtime import marks, step_clock
    from rlprof_ops.runtime.on_demand import watcher
    from rlprof_ops.runtime.process.worker_identity import CONTROLLER, DRIVERS, find_identity, in_ray_task
    from rlprof_ops.runtime.ranges import range_times, trackers

    with_metrics = range_times.asked()
    on_demand = watcher.asked(os.environ)
    listening = with_metrics or on_demand or marks.asked() or trackers.asked()
    if not request and not listening:
        return NullProfiler()
    worker = worker or os.environ.get(env_names.WORKER)
    # A script's loop in a Ray task: no variable can say so, but such a task goes by no worker's name.
    loop = (not worker or worker in DRIVERS) and in_ray_task() and step_clock.take_lead_in_task()
    if loop and env_names.NSYS_SESSION not in os.environ:
        os.environ.setdefault(env_names.NOT_WRAPPED, _TASK)
    place = find_identity(worker or (CONTROLLER if loop else None), rank, world_size, os.environ)
    from rlprof_ops import backends
    from rlprof_ops.runtime.active_profiler import Profiler

    before = CURRENT.profiler
    leads = (loop or os.environ.get(env_names.LEADS) == "1") and place.rank == 0 and not follows
    if reuse and isinstance(before, Profiler) and not before.closed and before.place == place:
        if leads and not before.leads:  # it followed, until the program told its own steps
            _take_the_lead(before, request)
        return before
    specs = request.for_worker(place.worker, place.rank) if request else ()
    specs = tuple(spec for spec in specs if spec.backend not in without)
    folders = request.in_folder(_BEGAN_IN).output_dir if request else None
    CURRENT.profiler = Profiler(place, specs, with_metrics, folders, on_demand, follows)
    CURRENT.profiler.elsewhere = without
    if not without and (on_demand or any(backends.from_outside(spec.backend) for spec in specs)):
        from rlprof_ops.runtime.process import session_file

        session_file.register(place.worker, place.rank, gate="process", world=place.world_size)
    if on_demand:
        CURRENT.profiler.watch(place.root / watcher.FOLDER)
    if leads:
        _take_the_lead(CURRENT.profiler, request)
    elif marks.asked():
        _tell_steps(CURRENT.profiler)
    return CURRENT.profiler


def _take_the_lead(found: Profiler, request: ProfileRequest | None) -> None:
    from rlprof_ops.runtime import step_clock
    from rlprof_ops.runtime.leader import Leader

    node_dir = os.environ.get(env_names.NODE_DIR)
    found.tell(Leader(found._events, step_clock.lead(node_dir, request), _now(found.place, leads=True)))


def _tell_steps(found: Profiler) -> None:
    """A process that does not lead tells its steps to the recorder of its node alone."""
    from rlprof_ops.runtime import marks
    from rlprof_ops.runtime.leader import Leader
    from rlprof_ops.runtime.process.event_log import EventLog

    place = found.place
    now = _now(place, leads=False)
    if now is not None:
        lines = EventLog(place.root / marks.FOLDER / f"{place.stem}.jsonl")
        found.tell(Leader(lines, None, now, leads=False))


def _now(place: WorkerIdentity, leads: bool) -> NowFile | None:
    from rlprof_ops.runtime import marks

    if not marks.asked() or not os.environ.get(env_names.NODE_DIR):
        return None
    path = place.root / marks.FOLDER / (place.stem + marks.SUFFIX)
    return marks.NowFile(path, place.worker, place.rank, place.world_size or 0, leads)


def lead(worker: str, rank: int = 0, world_size: int | None = None, whose: str = "") -> Profiler | None:
    """For adapters: the profiler of a process that knows the job's steps; rank 0 tells them to the job.
    `whose` steps these are, for the manifest.

    None when nothing is asked, or when a profiler of this process leads already (the code uses our runtime).
    """
    if not _concerned() or CURRENT.profiler.leads:
        return None
    named = os.environ.get(env_names.WORKER)  # by `rlprof wrap --worker`, or as the actor was labelled
    from rlprof_ops.runtime.process.worker_identity import DRIVERS

    found = from_env(worker if not named or named in DRIVERS else named, rank, world_size)
    if isinstance(found, NullProfiler):
        return None
    if rank == 0 and not found.leads:
        _take_the_lead(found, request_from_env(os.environ))
    found.led_by(whose)
    return found


if TYPE_CHECKING:

    @overload
    def annotate(name: str | None = None) -> Callable[[Function], Function]: ...
    @overload
    def annotate(name: Function) -> Function: ...


def annotate(name: object = None) -> object:
    """`@profiler.annotate("train")` on a function or method, before any profiler exists: the one of
    `from_env` will record it.

    Where nothing is asked in this process's environment the function is handed back unchanged.
    """
    if not _concerned():
        return NullProfiler().annotate(name)
    from rlprof_ops.runtime.ranges.annotate import decorator

    return decorator(CURRENT, name)


def runtime_env(worker: str, rank: int | None = None) -> dict[str, dict[str, str | int | None]]:
    """What to merge into an actor's `runtime_env` so that our plugin wraps it; {} when nothing is asked in
    this process.

    Example: `Actor.options(runtime_env={**mine, **profiler.runtime_env("policy_worker", rank)})`
    """
    if not any(map(os.environ.get, _ASKING)):
        on_demand = os.environ.get(env_names.ON_DEMAND)
        if not on_demand:
            return {}
        from rlprof_ops import backends

        if not backends.wraps(on_demand):
            return {}
    from rlprof_ops.runtime.plain_values import plain_name, whole_number

    return {"rlprof": {"worker": plain_name(worker), "rank": whole_number(rank)}}
