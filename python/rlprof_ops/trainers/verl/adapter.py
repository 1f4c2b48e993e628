"""verl, V1 and the trainers before it: roles of its actors, steps and phases of its controller, tasks of its
workers.

A step is `global_steps` of the trainer, from the beginning to the end of its own timer `step` (rollout to
weight update; validation and logging come after it). In the asynchronous trainers (one step off, fully
async, separate) it is the same timer of the trainer: what the rollout makes meanwhile is for a later step,
and is shown where it ran. Phases are the timers inside it, by verl's own names, as `timing_s/<name>` has
them.
"""

from __future__ import annotations

import inspect
import re
import weakref
from types import ModuleType
from typing import Any

from rlprof_ops.runtime.process.actor_labels import NewActor, add_helpers, add_rule
from rlprof_ops.runtime.process.hooks import Intercept, UnknownShape, Watch, attribute, expect, follow
from rlprof_ops.trainers.tasks import begin_task, decorated_tasks, leader, task

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
        self.trainer: weakref.ref[Any] | None = None
        self.profiler: Any = None
        self.step: int | None = None
        self.roles: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()

    def begin(self, name: str) -> Any:
        """A timer begins: a step, a phase of it, or nothing of ours (None)."""
        if self.trainer is None:  # a worker, e.g. an agent loop around each of its samples
            return begin_task(name)
        if name == "step" and self.step is None:
            if self.profiler is None:
                self.profiler = leader(CONTROLLER)
            self.step = int(attribute(self.trainer(), "global_steps"))
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
        else:
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
        follow(module, "_timer", Watch("verl", _timer_begins, _timer_ends))
    elif name == "verl.utils.profiler.profile":
        follow(attribute(module, "DistProfiler"), "annotate", decorated_tasks("verl"))
    elif name == "verl.single_controller.ray.base":
        follow(module, "create_colocated_worker_cls", _COLOCATED)
        if hasattr(module, "create_colocated_worker_cls_fused"):
            follow(module, "create_colocated_worker_cls_fused", _COLOCATED)
    elif name == "verl.trainer.ppo.v1.trainer_base":
        follow(attribute(module, "PPOTrainer"), "__init__", _TRAINER)
    elif name == "verl.trainer.ppo.ray_trainer":
        follow(attribute(module, "RayPPOTrainer"), "__init__", _TRAINER)
    elif name == "verl.workers.engine_workers":
        hook = task("verl", "update_weights")
        follow(attribute(module, "ActorRolloutRefWorker"), "update_weights", hook)


def role_of(actor: NewActor) -> tuple[str, int | None] | None:
    """verl's role of an actor, with its RANK; None for what is not verl's."""
    rank = actor.variables.get("RANK", "")
    number = int(rank) if rank.isdigit() else None
    known = _STATE.roles.get(actor.cls) if actor.cls is not None else None
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


def _note_roles(made: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    keys = [str(key) for key in (*arguments, *named.values())[0]]
    role = next((name for part, name in _ROLES for key in keys if part in key), "_".join(keys))
    _STATE.roles[made.cls.__ray_metadata__.modified_class] = role
    return made


def _note_trainer(trainer: Any, *_: object, **__: object) -> None:
    _STATE.trainer = weakref.ref(trainer)


def _timer_begins(name: str, *_: object, **__: object) -> Any:
    return _STATE.begin(name)


def _timer_ends(begun: Any, _: object) -> None:
    _STATE.end(begun)


_COLOCATED = Intercept("verl", finish=_note_roles)
_TRAINER = Watch("verl", _note_trainer)
