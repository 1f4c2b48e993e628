"""RLinf: steps and phases of its runners from `ScopedTimer`, roles and ranks from the names of worker groups.

A step is `global_step + 1` (RLinf counts from 0, we from 1), from the runner's own timer `step` beginning to
its end; a group whose `start_profile(i)` is called begins step i + 1, which ends with the timer, or with
`stop_profile` where no runner times it. An attempt that an asynchronous runner skips, since it has too few
samples yet, is a part of the step: the wait for them is its time. In the asynchronous runners what
environments and rollout make meanwhile is for a later step, and is shown where it ran. Phases are the other
names of that timer; the tasks of a worker are those of `Worker.timer`. Groups and channels are named as
`launch(name=…)` and `Channel.create(name)` say.
"""

from __future__ import annotations

import functools
import inspect
import os
from types import ModuleType
from typing import Any

from rlprof_ops import backends, env_names
from rlprof_ops.runtime.process.actor_labels import NOBODY, NewActor, add_rule
from rlprof_ops.runtime.process.hooks import (
    Intercept,
    Substitute,
    UnknownShape,
    Watch,
    attribute,
    caller_locals,
    expect,
    follow,
    safely,
)
from rlprof_ops.runtime.process.worker_identity import DRIVER
from rlprof_ops.runtime.trainer_request import whole_request_of
from rlprof_ops.trainers.tasks import LeadingLoop, decorated_tasks

_STEP = "step"


class _Runner(LeadingLoop):
    """The step of this process, and whether a timer has begun it."""

    def __init__(self) -> None:
        super().__init__()
        self.timed = False
        self.asked = False  # RLinf's own configuration was looked at

    def begin(self, step: int) -> None:
        """Step `step` begins, unless it has already."""
        self.lead(DRIVER)
        self.begin_step(step)

    def end_step(self) -> None:
        self.timed = False
        super().end_step()

    def timer_begins(self, name: str, owner: Any) -> Any:
        """The timer `name` begins: "step" for a step, the range of a phase, None for nothing of ours."""
        if name == _STEP:
            number = getattr(owner, "global_step", getattr(owner, "global_steps", None))
            if not isinstance(number, int):
                return None
            self.begin(number + 1)
            self.timed = True
            return _STEP
        return self.phase(name)

    def timer_ends(self, begun: Any, skipped: bool) -> None:
        """A timer ended. A step whose attempt its runner `skipped` goes on: it is tried again."""
        if begun == _STEP:
            if not skipped:
                self.end_step()
        else:
            begun.__exit__(None, None, None)

    def profiled(self, function: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The driver has a group open or close its profiler's window."""
        if function == "start_profile":
            step = named.get("step_idx", arguments[0] if arguments else None)
            if isinstance(step, int):
                self.begin(step + 1)
        elif not self.timed:
            self.end_step()


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
        timer = attribute(module, "ScopedTimer")
        if not inspect.isgeneratorfunction(inspect.unwrap(attribute(timer, "__call__"))):
            raise UnknownShape("a call of ScopedTimer is no context manager")
        follow(timer, "__call__", Watch("RLinf", _timer_begins, _timer_ends))
    elif name == "rlinf.scheduler.worker.worker":
        follow(attribute(module, "Worker"), "timer", decorated_tasks("RLinf"))
    elif name == "rlinf.scheduler.worker.worker_group":
        follow(attribute(module, "WorkerGroupFunc"), "__call__", Watch("RLinf", _group_function))
    elif name == "rlinf.scheduler.cluster.cluster":
        owner = attribute(module, "Cluster")
        if not {"modify_profile_context", "get_profiling_env_vars_for_worker"} & set(dir(owner)):
            return  # RLinf 0.2 has no profiling of its own
        theirs = inspect.signature(attribute(owner, "modify_profile_context").__func__)
        if not {"python_interpreter_path", "worker_name", "profiling_cfg"} <= set(theirs.parameters):
            raise UnknownShape(f"Cluster.modify_profile_context takes {', '.join(theirs.parameters)}")
        hook = Intercept("RLinf", prepare=functools.partial(_profile_context, theirs))
        follow(owner, "modify_profile_context", hook)
        follow(owner, "get_profiling_env_vars_for_worker", Intercept("RLinf", prepare=_profile_variables))


def role_of(actor: NewActor) -> tuple[str, int | None] | None:
    """The group's name and the rank of one of its workers; RLinf's probes and managers are nobody's."""
    group, rank = actor.variables.get("GROUP_NAME"), actor.variables.get("RANK", "")
    if group and "CLUSTER_NAMESPACE" in actor.variables:
        return group, int(rank) if rank.isdigit() else None
    return NOBODY if actor.module.startswith("rlinf.scheduler.") else None


def _timer_begins(_: object, name: str, *__: object, **___: object) -> Any:
    return _RUNNER.timer_begins(name, caller_locals("self")[0] if name == _STEP else None)


def _timer_ends(begun: Any, _: object) -> None:
    skipped = begun == _STEP and caller_locals("skip_step")[0] is True
    _RUNNER.timer_ends(begun, skipped)


def _group_function(function: Any, *arguments: Any, **named: Any) -> None:
    if function.func_name in ("start_profile", "stop_profile"):
        _RUNNER.profiled(function.func_name, arguments, named)


def _profile_context(theirs: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """RLinf's own wrap gives way to ours: of the job's request where that selects the worker, though earlier
    attempts may have brought home all that it asks; else, in a job that was asked for nothing, of RLinf's.
    What is left of it writes into the run folder."""
    bound = theirs.bind(*arguments, **named)
    config, worker = bound.arguments.get("profiling_cfg"), str(bound.arguments["worker_name"])
    if config is None:
        return None
    safely("RLinf", _ask, config)
    if safely("RLinf", _is_ours, worker):
        return Substitute(bound.arguments["python_interpreter_path"])
    bound.arguments["profiling_cfg"] = _into_run_folder(config, worker)
    return bound.args, bound.kwargs


def _profile_variables(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Where RLinf's own wrap would write: nothing of it for a worker that is ours."""
    worker = named.get("worker_name", arguments[1] if len(arguments) > 1 else None)
    return Substitute({}) if worker and safely("RLinf", _is_ours, str(worker)) else None


def _ask(config: Any) -> None:
    """Make `cluster.profiling` the request of a job that has none."""
    if _RUNNER.asked or os.environ.get(env_names.REQUEST_JSON) or not backends.wraps(config.backend):
        return
    _RUNNER.asked = True
    from rlprof_ops.runtime import step_clock
    from rlprof_ops.trainers.rlinf.import_rlinf import request_of

    request = request_of(config)
    if request and step_clock.tell_request(request.to_json()):
        os.environ[env_names.REQUEST_JSON] = request.to_json()


def _is_ours(worker: str) -> bool:
    """Whether the job's whole request selects `<group>:<rank>` for a profiler that has to start it. Our
    plugin does, where something is left to take.
    """
    request, (group, _, rank) = whole_request_of(os.environ), worker.partition(":")
    specs = request.for_worker(group, int(rank.partition(":")[0] or 0)) if request else ()
    return any(backends.wraps(spec.backend) for spec in specs)


def _into_run_folder(config: Any, worker: str) -> Any:
    """A copy of RLinf's profiling configuration whose reports are written where the job's others come to."""
    run = os.environ.get(env_names.RUN_DIR)
    if not run or not hasattr(config, "output_dir"):
        return config
    import copy

    from rlprof_ops.backends import report_names

    group, _, rank = worker.partition(":")
    changed = copy.copy(config)
    backend = str(getattr(config, "BACKEND_TYPE", backends.DEFAULT))
    changed.output_dir = os.path.join(
        run, report_names.report_folder(backend, group, int(rank.partition(":")[0] or 0))
    )
    return changed
