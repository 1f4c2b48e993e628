"""verl, V1 and the trainers before it: roles of its actors, steps and phases of its controller, tasks of its
workers.

A step is `global_steps` of the trainer, from the beginning to the end of its own timer `step` (rollout to
weight update; validation and logging come after it). In the asynchronous trainers (one step off, fully
async, separate) it is the same timer of the trainer: what the rollout makes meanwhile is for a later step,
and is shown where it ran. Phases are the timers inside it, by verl's own names, as `timing_s/<name>` has
them.
"""

from __future__ import annotations

import functools
import inspect
import re
from types import ModuleType
from typing import Any

from rlprof_ops.frameworks.adapter import UnknownShape, attribute, expect, leader, safely, wrap
from rlprof_ops.runtime.process.actor_labels import NewActor, add_helpers, add_rule

CONTROLLER = "controller"
_CLASSES = {
    "ActorRolloutRefWorker": "actor",
    "AsyncActorRolloutRefWorker": "actor",
    "DetachActorWorker": "actor",
    "CriticWorker": "critic",
    "TrainingWorker": "critic",
    "RewardModelWorker": "reward_model",
}
# By the beginning of the class name; the number of a server or worker stands in its actor's name.
_KINDS = (
    (re.compile(r"(?:v?llm|sglang|trtllm)\w*Server", re.IGNORECASE), "rollout"),
    (re.compile(r"AgentLoopWorker"), "agent_loop"),
    (re.compile(r"RewardLoopWorker"), "reward_loop"),
    (re.compile(r"\w*TaskRunner"), CONTROLLER),
)
# They hold data or route requests; their work is in the waiting of the others.
_HELPERS = ("transfer_queue_controller", "simple_storage_unit", "global_request_load_balancer")
# The roles of a colocated process, most telling first.
_ROLES = (
    ("actor", "actor"),
    ("critic", "critic"),
    ("ref", "ref"),
    ("rm", "reward_model"),
    ("teacher", "teacher"),
)


class _State:
    """What this process knows: the trainer, its step, and the roles of the colocated classes that it made."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.profiler: Any = None
        self.step: int | None = None
        self.roles: dict[int, tuple[Any, str]] = {}

    def begin(self, name: str) -> Any:
        """A timer begins: a step, a phase of it, or nothing of ours (None)."""
        if self.trainer is None:  # a worker, e.g. an agent loop around each of its samples
            from rlprof_ops.runtime import follower

            task = follower.task(name)
            task.__enter__()
            return task
        if name == "step" and self.step is None:
            if self.profiler is None:
                self.profiler = leader(CONTROLLER)
            self.step = int(self.trainer.global_steps)
            self.profiler.start_step(self.step)
            return "step"
        if self.step is None or not self.profiler.active:
            return None
        found = self.profiler.range(name)
        found.__enter__()
        return found

    def end(self, begun: Any) -> None:
        if begun == "step":
            step, self.step = self.step, None
            self.profiler.stop_step(step)
        elif begun is not None:
            begun.__exit__(None, None, None)


_STATE = _State()


def install(name: str, module: ModuleType) -> None:
    """Follow one of verl's modules.

    Raises:
        UnknownShape: a verl that has other functions.
    """
    if name == "verl":
        add_rule(role_of)
        add_helpers(*_HELPERS)
        expect(module, "utils.profiler.performance", "utils.profiler.profile", "single_controller.ray.base")
        try:
            expect(module, "trainer.ppo.ray_trainer")  # before V1
        except UnknownShape:
            expect(module, "trainer.ppo.v1.trainer_base")
    elif name == "verl.utils.profiler.performance":
        if not inspect.isgeneratorfunction(attribute(module, "_timer")):
            raise UnknownShape("_timer is no generator function")
        wrap(module, "_timer", _timer)
    elif name == "verl.utils.profiler.profile":
        _follow_annotate(attribute(module, "DistProfiler"))
    elif name == "verl.single_controller.ray.base":
        wrap(module, "create_colocated_worker_cls", _remember_roles)
        if hasattr(module, "create_colocated_worker_cls_fused"):
            wrap(module, "create_colocated_worker_cls_fused", _remember_roles)
    elif name == "verl.trainer.ppo.v1.trainer_base":
        wrap(attribute(module, "PPOTrainer"), "__init__", _remember_trainer)
    elif name == "verl.trainer.ppo.ray_trainer":
        wrap(attribute(module, "RayPPOTrainer"), "__init__", _remember_trainer)
    elif name == "verl.workers.engine_workers":
        wrap(attribute(module, "ActorRolloutRefWorker"), "update_weights", _async_task("update_weights"))


def role_of(actor: NewActor) -> tuple[str, int | None] | None:
    """verl's role of an actor, with its RANK; None for what is not verl's."""
    rank = actor.variables.get("RANK", "")
    number = int(rank) if rank.isdigit() else None
    known = next((role for cls, role in _STATE.roles.values() if cls is actor.cls), None)
    if known is not None:
        return known, number
    if actor.class_name in _CLASSES:
        return _CLASSES[actor.class_name], number
    for pattern, role in _KINDS:
        if pattern.match(actor.class_name):
            return _numbered(role, actor.name)
    return None


def _numbered(role: str, name: str) -> tuple[str, int | None]:
    """`vllm_server_<replica>_<node>` and `agent_loop_worker_<i>_<random>`: the replica is the rank of a
    rollout."""
    server = re.search(r"server_(\d+)_(\d+)", name)
    if server:
        return (role if server[2] == "0" else f"{role}_node{server[2]}"), int(server[1])
    worker = re.search(r"_worker_(\d+)", name)
    return role, int(worker[1]) if worker else None


def _remember_roles(before: Any) -> Any:
    def create(class_dict: Any, *rest: Any, **named: Any) -> Any:
        made = before(class_dict, *rest, **named)
        safely("verl", _note_roles, class_dict, made)
        return made

    return create


def _note_roles(class_dict: Any, made: Any) -> None:
    keys = [str(key) for key in class_dict]
    role = next((name for part, name in _ROLES for key in keys if part in key), "_".join(keys))
    cls = made.cls.__ray_metadata__.modified_class
    _STATE.roles[id(cls)] = (cls, role)


def _remember_trainer(before: Any) -> Any:
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        _STATE.trainer = self
        before(self, *arguments, **named)

    return __init__


def _timer(before: Any) -> Any:
    def timer(name: str, timing_raw: dict[str, float], *rest: Any, **named: Any) -> Any:
        begun = safely("verl", _STATE.begin, name)
        try:
            return (yield from before(name, timing_raw, *rest, **named))
        finally:
            if begun is not None:
                safely("verl", _STATE.end, begun)

    return timer


def _follow_annotate(owner: Any) -> None:
    """Have `DistProfiler.annotate` mark its methods as tasks, whether verl's own profiler is on or not."""
    before = attribute(owner, "annotate")
    if getattr(before, "_rlprof_wrapped", False):
        return

    def annotate(message: str | None = None, *rest: Any, **named: Any) -> Any:
        decorate = before(message, *rest, **named)

        def decorator(function: Any) -> Any:
            inner = decorate(function)
            label = message or named.get("role") or getattr(function, "__name__", "task")
            return inner if inspect.iscoroutinefunction(function) else _as_task(inner, str(label))

        return decorator

    annotate._rlprof_wrapped = True  # type: ignore[attr-defined]
    owner.annotate = staticmethod(annotate)


def _as_task(function: Any, label: str) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        from rlprof_ops.runtime import follower

        task = safely("verl", follower.task, label)
        if task is None:
            return function(*arguments, **named)
        safely("verl", task.__enter__)
        try:
            return function(*arguments, **named)
        finally:
            safely("verl", task.__exit__, None, None, None)

    return call


def _async_task(label: str) -> Any:
    def make(before: Any) -> Any:
        if not inspect.iscoroutinefunction(before):
            return _as_task(before, label)

        async def call(*arguments: Any, **named: Any) -> Any:
            from rlprof_ops.runtime import follower

            task = safely("verl", follower.task, label)
            if task is not None:
                safely("verl", task.__enter__)
            try:
                return await before(*arguments, **named)
            finally:
                if task is not None:
                    safely("verl", task.__exit__, None, None, None)

        return call

    return make
