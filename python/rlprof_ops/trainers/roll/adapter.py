"""ROLL: steps and phases of its pipelines' timers, tasks of its workers, roles of its clusters.

A step is the outermost timer in a pipeline's `run`: what ROLL logs as `time/step_total`, and in the pipelines
that log no total (SFT, distillation) `step_train`. Its number is the pipeline's own, counted from 1. Phases
are the other timers in the thread of `run`, by their names; an agentic pipeline validates in a thread beside
it.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from rlprof_ops.runtime.process.actor_labels import NewActor, add_helpers, add_rule
from rlprof_ops.runtime.process.hooks import Watch, attribute, caller_locals, expect, follow
from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers.tasks import LeadingLoop, decorated_tasks

TRAINER = "ROLL"
_STEPS = ("step_total", "pipeline_step_total", "step_train", "rollout")
_COUNTS_FROM_1 = "roll.pipeline.distill."
# They hand requests and data on; by the names that Ray's actors of these classes get.
_HELPERS = (
    *("shared_storage", "ray_memory_store_server", "group_queue_manager", "router_manager"),
    *("rollout_scheduler", "dynamic_sampling_scheduler"),
)


class _Pipeline(LeadingLoop):
    """The step of this process, the thread and the timer that it is, and its timers that have begun."""

    def __init__(self) -> None:
        super().__init__()
        self.thread: int | None = None
        self.timer: Any = None
        self.phases: dict[int, Any] = {}

    def begin(self, timer: Any, owner: Any, global_step: object) -> None:
        """A timer begins in code with these variables: a step, a phase of it, or neither."""
        if self.step is not None:
            if self.thread == threading.get_ident():
                self.phases[id(timer)] = self.phase(timer.name)
        elif timer.name in _STEPS and isinstance(global_step, int):
            self.lead(CONTROLLER)
            self.thread, self.timer = threading.get_ident(), timer
            from_1 = any(cls.__module__.startswith(_COUNTS_FROM_1) for cls in type(owner).__mro__)
            self.begin_step(global_step if from_1 else global_step + 1)

    def end(self, timer: Any) -> None:
        """A timer has ended, and with the step's own the step."""
        phase = self.phases.pop(id(timer), None)
        if phase is not None:
            phase.__exit__(None, None, None)
        elif self.timer is timer:
            self.timer = None
            self.end_step()


_PIPELINE = _Pipeline()


def install(name: str, module: ModuleType) -> None:
    """Follow one of ROLL's modules."""
    if name == "roll":
        add_rule(role_of)
        add_helpers(*_HELPERS)
        expect(module, "distributed.scheduler.decorator", "pipeline.base_pipeline")
    elif name == "roll.distributed.scheduler.decorator":
        follow(module, "register", decorated_tasks(TRAINER))
    else:
        timer = attribute(module, "Timer")  # codetiming's, the same for all
        follow(timer, "__enter__", Watch(TRAINER, _timer_begins))
        follow(timer, "__exit__", Watch(TRAINER, _timer_ends, _timer_ended))


def role_of(actor: NewActor) -> tuple[str, int] | None:
    """The cluster of one of ROLL's workers and its rank in it, as the cluster tells the worker."""
    rank = actor.variables.get("RANK", "")
    bases = (actor.module, *(cls.__module__ for cls in getattr(actor.cls, "__mro__", ())))
    if not (rank.isdecimal() and any(module.startswith("roll.") for module in bases)):
        return None
    cluster = actor.variables.get("CLUSTER_NAME", "")
    return (cluster.replace("-", "_"), int(rank)) if cluster else None  # reward-math_rule


def _timer_begins(timer: Any, *_: object, **__: object) -> None:
    _PIPELINE.begin(timer, *caller_locals("self", "global_step"))


def _timer_ends(timer: Any, *_: object, **__: object) -> Any:
    return timer


def _timer_ended(timer: Any, _: BaseException | None) -> None:
    _PIPELINE.end(timer)
