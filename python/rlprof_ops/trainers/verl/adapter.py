"""verl, V1 and the trainers before it: roles of its actors, steps and phases of its controller, tasks of its
workers.

A step is `global_steps` of the trainer, from the beginning to the end of its own timer `step` (rollout to
weight update; validation and logging come after it). The trainer is whose method runs that timer, of
whatever class. In the asynchronous trainers (one step off, separate) it is the same timer: what the rollout
makes meanwhile is for a later step, and is shown where it ran. The fully asynchronous trainer runs the timer
once a mini-step, and counts by versions of its parameters (verl 6461): its step is the version that it works
towards, from the first of its mini-steps to the end of the one that hands the version over. Phases are the
timers inside a step, by verl's own names, as `timing_s/<name>` has them. A trainer that filters groups (the
DAPO recipe's) leaves its timer for as long as it has too few prompts, and tries the same step again: all of
it is one step.
"""

from __future__ import annotations

import inspect
import re
import sys
import weakref
from types import ModuleType
from typing import Any

from rlprof_ops.runtime.process.actor_labels import NewActor, add_helpers, add_rule
from rlprof_ops.runtime.process.frames import local_values
from rlprof_ops.runtime.process.hooks import (
    Intercept,
    UnknownShape,
    Watch,
    attribute,
    caller_locals,
    expect,
    follow,
    safely,
)
from rlprof_ops.runtime.process.place import asyncio_task
from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers import sample_versions
from rlprof_ops.trainers.tasks import LeadingLoop, begin_task, decorated_tasks, piece, task

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
    (re.compile(r"FullyAsyncTaskRunner"), "task_runner"),  # it starts the trainer, an actor, and waits
    (re.compile(r"\w*TaskRunner|FullyAsyncTrainer"), CONTROLLER),
    (re.compile(r"FullyAsyncRollouter"), "rollouter"),
)
# They hold data or route requests; their work is in the waiting of the others.
_HELPERS = (
    "transfer_queue_controller",
    "simple_storage_unit",
    "global_request_load_balancer",
    "checkpoint_engine_worker",
    "message_queue",
    "task_runner",
)
# An update is one task of seconds to minutes, of which the forward pass of a micro-batch is a piece. VeOmni's
# engine is FSDP's.
_ENGINES = {
    "verl.workers.engine.automodel.transformer_impl": "AutomodelEngineWithLMHead",
    "verl.workers.engine.fsdp.transformer_impl": "FSDPEngineWithLMHead",
    "verl.workers.engine.megatron.transformer_impl": "MegatronEngineWithLMHead",
    "verl.workers.engine.torchtitan.transformer_impl": "TorchTitanEngineWithLMHead",
}
# The roles of a colocated process, most telling first.
_ROLES = (
    ("actor", "actor"),
    ("critic", "critic"),
    ("ref", "ref"),
    ("rm", "reward_model"),
    ("teacher", "teacher"),
)


_TIMERS = "verl.utils.profiler.performance"
# Frames between a hook in `_timer` and the trainer's method: the hook's own, two generators, `contextlib`'s.
_MOST_FRAMES = 16


class _State(LeadingLoop):
    """What this process knows: the trainer, its step, and the roles of the colocated classes that it made."""

    def __init__(self) -> None:
        super().__init__()
        self.trainer: weakref.ref[Any] | None = None
        self.step_task: Any = None
        self.is_tried_again = False
        self.roles: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()

    def begin(self, name: str) -> Any:
        """A timer begins: a step, a phase of it, or nothing of ours (None)."""
        trainer = self.trainer() if self.trainer is not None else None
        if trainer is None:
            trainer = _trainer_of_timer()
            if trainer is None:  # a worker, e.g. an agent loop around each of its samples
                return begin_task(name)
            self.trainer = weakref.ref(trainer)
        if name == "step" and (self.step is None or self.is_tried_again or _version(trainer) is not None):
            self.is_tried_again = False
            self.lead(CONTROLLER)
            if self.begin_step(_version(trainer) or attribute(trainer, "global_steps")):
                self.step_task = asyncio_task()  # else this is the next mini-step
            return "step"
        if asyncio_task() is not self.step_task:
            return None  # what another task of the loop does, is for a later step
        return self.phase(name.removeprefix("timing_s/"))

    def end(self, begun: Any) -> None:
        if begun != "step":
            begun.__exit__(None, None, None)
        elif self.step != _version(self.trainer and self.trainer()):
            self.is_tried_again = _lacks_prompts()
            if not self.is_tried_again:
                self.end_step()


def _lacks_prompts() -> bool:
    """Whether the loop has too few prompts for its step yet, in the words of recipe/dapo."""
    found, wanted = caller_locals("num_prompt_in_batch", "prompt_bsz", through=_TIMERS)
    return isinstance(found, int) and isinstance(wanted, int) and found < wanted


def _version(trainer: Any) -> int | None:
    """The version of its parameters that a trainer works towards; None where it does not count them."""
    version = getattr(trainer, "current_param_version", None)
    return version + 1 if isinstance(version, int) else None


def _trainer_of_timer() -> Any:
    """Whose method runs the timer that has just begun, where it counts steps; a subclass need not call the
    `__init__` of any class of verl's."""
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        [found] = local_values(frame, "self")
        if isinstance(getattr(found, "global_steps", None), int):
            return found
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


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
    elif name == _TIMERS:
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
        follow(attribute(module, "PPOTrainer"), "_compute_metrics", Watch("verl", _trained))
    elif name == "verl.experimental.fully_async_policy.detach_utils":
        follow(module, "assemble_batch_from_rollout_samples", Intercept("verl", finish=_assembled))
    elif name in _ENGINES:
        follow(attribute(module, _ENGINES[name]), "forward_step", piece("verl"))
    elif name == "verl.workers.engine_workers":
        worker = attribute(module, "ActorRolloutRefWorker")
        sends = "update_weights" if hasattr(worker, "update_weights") else "wake_up"  # verl 0.7.0
        follow(worker, sends, task("verl", "update_weights"))


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
    """`vllm_server_<replica>_<node>`, `vllm_server_reward_<replica>_<node>` and
    `agent_loop_worker_<i>_<random>`: the replica is the rank of a rollout. TensorRT's servers have no node.
    """
    server = re.search(r"server_(?:(reward|teacher)_)?(\d+)(?:_(\d+))?", name)
    if server:
        role = f"{server[1]}_{role}" if server[1] else role
        return (f"{role}_node{server[3]}" if int(server[3] or 0) else role), int(server[2])
    worker = re.search(r"_worker_(\d+)", name)
    return role, int(worker[1]) if worker else None


def _note_roles(made: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    keys = [str(key) for key in (*arguments, *named.values())[0]]
    role = next((name for part, name in _ROLES for key in keys if part in key), "_".join(keys))
    _STATE.roles[made.cls.__ray_metadata__.modified_class] = role
    return made


def _trained(_: Any, batch: Any, *__: object, global_steps: int, **___: object) -> None:
    """V1: its version is the number of updates before the step (`trajectory_staleness`, trainer_base.py)."""
    tags = [tag for tag in batch.tags if not tag.get("is_padding", False)]
    made = [(tag["min_global_steps"], tag["max_global_steps"]) for tag in tags]
    sample_versions.trained(global_steps, global_steps - 1, made)


def _assembled(batch: Any, _: object, __: object) -> Any:
    """The fully asynchronous trainer has put a mini-step's batch together."""
    trainer = _STATE.trainer() if _STATE.trainer is not None else None
    safely("verl", _trained_on, trainer, batch)
    return batch


def _trained_on(trainer: Any, batch: Any) -> None:
    version = _version(trainer)
    if version is not None:
        told = batch.non_tensor_batch
        made = zip(told["min_global_steps"], told["max_global_steps"], strict=True)
        sample_versions.trained(version, version - 1, made)


def _timer_begins(name: str, *_: object, **__: object) -> Any:
    return _STATE.begin(name)


def _timer_ends(begun: Any, _: object) -> None:
    _STATE.end(begun)


_COLOCATED = Intercept("verl", finish=_note_roles)
