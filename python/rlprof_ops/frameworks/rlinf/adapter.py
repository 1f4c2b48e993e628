"""RLinf: steps and phases of its runners from `ScopedTimer`, roles and ranks from the names of worker groups.

A step is `global_step + 1` (RLinf counts from 0, we from 1), from the runner's own timer `step` beginning to
its end; a group whose `start_profile(i)` is called begins step i + 1, which ends with the timer, or with
`stop_profile` where no runner times it. An attempt that an asynchronous runner skips is a step of the same
number again. In the asynchronous runners what environments and rollout make meanwhile is for a later step,
and is shown where it ran. Phases are the other names of that timer; the tasks of a worker are those of
`Worker.timer`. Groups and channels are named as `launch(name=…)` and `Channel.create(name)` say.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from rlprof_ops import backends, env_names
from rlprof_ops.frameworks.adapter import UnknownShape, attribute, expect, leader, safely, wrap
from rlprof_ops.frameworks.tasks import as_task
from rlprof_ops.runtime.process.actor_labels import NOBODY, NewActor, add_rule

DRIVER = "driver"
_STEP = "step"


class _Runner:
    """The step of this process, and whether a timer has begun it."""

    def __init__(self) -> None:
        self.profiler: Any = None
        self.step: int | None = None
        self.timed = False
        self.asked = False  # RLinf's own configuration was looked at

    def begin(self, step: int) -> None:
        """Step `step` begins, unless it has already."""
        if step == self.step:
            return
        self.end()
        if self.profiler is None:
            self.profiler = leader(DRIVER)
        self.step = step
        self.profiler.start_step(step)

    def end(self) -> None:
        if self.step is not None:
            step, self.step, self.timed = self.step, None, False
            self.profiler.stop_step(step)

    def timer_begins(self, name: str, owner: Any) -> Any:
        """The timer `name` begins: "step" for a step, the range of a phase, None for nothing of ours."""
        if name == _STEP:
            number = getattr(owner, "global_step", getattr(owner, "global_steps", None))
            if not isinstance(number, int):
                return None
            self.begin(number + 1)
            self.timed = True
            return _STEP
        if self.step is None or not self.profiler.active:
            return None
        found = self.profiler.range(name)
        found.__enter__()
        return found

    def timer_ends(self, begun: Any) -> None:
        if begun == _STEP:
            self.end()
        else:
            begun.__exit__(None, None, None)

    def profiled(self, function: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The driver has a group open or close its profiler's window."""
        if function == "start_profile":
            step = named.get("step_idx", arguments[0] if arguments else None)
            if isinstance(step, int):
                self.begin(step + 1)
        elif not self.timed:
            self.end()


_RUNNER = _Runner()


def install(name: str, module: ModuleType) -> None:
    """Follow one of RLinf's modules.

    Raises:
        UnknownShape: an RLinf that has other classes.
    """
    if name == "rlinf":
        add_rule(role_of)
        modules = ("utils.distributed", "scheduler.worker.worker", "scheduler.worker.worker_group")
        expect(module, *modules, "scheduler.cluster.cluster")
    elif name == "rlinf.utils.distributed":
        wrap(attribute(module, "ScopedTimer"), "__call__", _timer)
    elif name == "rlinf.scheduler.worker.worker":
        worker = attribute(module, "Worker")
        wrap(worker, "timer", _named_task)  # a static method, which RLinf's metaclass makes a plain one
    elif name == "rlinf.scheduler.worker.worker_group":
        owner = attribute(module, "WorkerGroupFunc")
        attribute(owner, "func_name")
        wrap(owner, "__call__", _group_function)
    elif name == "rlinf.scheduler.cluster.cluster":
        owner = attribute(module, "Cluster")
        if not isinstance(vars(owner).get("modify_profile_context"), classmethod):
            raise UnknownShape("Cluster has no class method modify_profile_context")
        for method, ours in (
            ("modify_profile_context", _profile_context),
            ("get_profiling_env_vars_for_worker", _profile_variables),
        ):
            wrap(owner, method, ours)
            if not isinstance(vars(owner)[method], classmethod):
                setattr(owner, method, classmethod(vars(owner)[method]))


def role_of(actor: NewActor) -> tuple[str, int | None] | None:
    """The group's name and the rank of one of its workers; RLinf's probes and managers are nobody's."""
    group, rank = actor.variables.get("GROUP_NAME"), actor.variables.get("RANK", "")
    if group and "CLUSTER_NAMESPACE" in actor.variables:
        return group, int(rank) if rank.isdigit() else None
    return NOBODY if actor.module.startswith("rlinf.scheduler.") else None


def _timer(before: Any) -> Any:
    def __call__(self: Any, name: str) -> contextlib.AbstractContextManager[None]:
        owner = sys._getframe(1).f_locals.get("self") if name == _STEP else None
        return _timed(before(self, name), name, owner)

    return __call__


@contextlib.contextmanager
def _timed(theirs: Any, name: str, owner: Any) -> Iterator[None]:
    begun = safely("RLinf", _RUNNER.timer_begins, name, owner)
    try:
        with theirs:
            yield
    finally:
        if begun is not None:
            safely("RLinf", _RUNNER.timer_ends, begun)


def _named_task(before: Any) -> Any:
    def timer(tag: str | None = None) -> Any:
        decorate = before(tag)

        def decorator(function: Any) -> Any:
            return as_task("RLinf", tag or function.__name__)(decorate(function))

        return decorator

    return timer


def _group_function(before: Any) -> Any:
    def __call__(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.func_name in ("start_profile", "stop_profile"):
            safely("RLinf", _RUNNER.profiled, self.func_name, arguments, named)
        return before(self, *arguments, **named)

    return __call__


def _profile_context(before: Any) -> Any:
    """RLinf's own wrap gives way to ours: of the job's request where that selects the worker,
    else, in a job that was asked for nothing, of RLinf's. What is left of it writes into the run folder."""
    theirs = before.__func__

    def modify_profile_context(cls: Any, *arguments: Any, **named: Any) -> Any:
        given = safely("RLinf", _bind, theirs, cls, arguments, named)
        if given is None:
            return theirs(cls, *arguments, **named)
        config, worker = given.get("profiling_cfg"), str(given["worker_name"])
        if config is not None:
            safely("RLinf", _ask, config)
        if config is not None and safely("RLinf", _is_wrapped, worker):
            return given["python_interpreter_path"]
        if config is not None:
            given["profiling_cfg"] = safely("RLinf", _into_run_folder, config, worker) or config
        return theirs(**given)

    return modify_profile_context


def _profile_variables(before: Any) -> Any:
    """Where RLinf's own wrap would write: nothing of it for a worker that ours starts."""
    theirs = before.__func__

    def get_profiling_env_vars_for_worker(cls: Any, worker_name: str, profiling_cfg: Any) -> Any:
        if profiling_cfg is not None and safely("RLinf", _is_wrapped, str(worker_name)):
            return {}
        return theirs(cls, worker_name=worker_name, profiling_cfg=profiling_cfg)

    return get_profiling_env_vars_for_worker


def _bind(function: Any, cls: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; raises `TypeError` for other ones than we know."""
    import inspect

    bound = inspect.signature(function).bind(cls, *arguments, **named).arguments
    if not {"python_interpreter_path", "worker_name", "profiling_cfg"} <= set(bound):
        raise TypeError(f"modify_profile_context takes {', '.join(bound)}")
    return dict(bound)


def _ask(config: Any) -> None:
    """Make `cluster.profiling` the request of a job that has none."""
    if _RUNNER.asked or os.environ.get(env_names.REQUEST_JSON) or not backends.wraps(config.backend):
        return
    _RUNNER.asked = True
    from rlprof_ops.frameworks.rlinf.import_config import request_of
    from rlprof_ops.runtime import step_clock
    from rlprof_ops.runtime.process import actor_labels

    request = request_of(config)
    if request and step_clock.tell_request(request.to_json()):
        os.environ[env_names.REQUEST_JSON] = request.to_json()
        actor_labels.forget_request()


def _is_wrapped(worker: str) -> bool:
    """Whether the request selects `<group>:<rank>` for a profiler that has to start it: our plugin does."""
    text = os.environ.get(env_names.REQUEST_JSON)
    if not text:
        return False
    from rlprof_ops.request import request_from_json

    group, _, rank = worker.partition(":")
    specs = request_from_json(text).for_worker(group, int(rank.partition(":")[0] or 0))
    return any(backends.wraps(spec.backend) for spec in specs)


def _into_run_folder(config: Any, worker: str) -> Any:
    """A copy of RLinf's profiling configuration whose reports are written where the job's others come to."""
    run = os.environ.get(env_names.RUN_DIR)
    if not run or not hasattr(config, "output_dir"):
        return config
    import copy

    from rlprof_ops.backends import names

    group, _, rank = worker.partition(":")
    changed = copy.copy(config)
    backend = str(getattr(config, "BACKEND_TYPE", backends.DEFAULT))
    changed.output_dir = os.path.join(
        run, names.report_folder(backend, group, int(rank.partition(":")[0] or 0))
    )
    return changed
