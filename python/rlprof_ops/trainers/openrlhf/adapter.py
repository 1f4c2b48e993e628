"""OpenRLHF: roles of its Ray actors, steps and phases of its trainer actor, tasks of its model actors.

A step is what OpenRLHF logs as `Global step n`: the samples that `PPOTrainer.fit` has generated for it, those
which dynamic filtering throws away included, and `train_step`. In asynchronous training it is the training
actor's `train_step` alone; samples are generated in another actor, for a later step, and shown where it ran.
Phases are what OpenRLHF itself times, by the names that it logs them under: generation, make_experience,
ppo_train, and broadcast by the name of the function.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from rlprof_ops.runtime.process.actor_labels import NewActor, add_helpers, add_rule
from rlprof_ops.runtime.process.hooks import Watch, attribute, caller_locals, expect, follow, safely
from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers.tasks import LeadingLoop, begin_task, task

TRAINER = "OpenRLHF"
_CLASSES = {
    "PPOTrainer": CONTROLLER,
    "TrainingActor": CONTROLLER,
    "GenerateSamplesActor": "sample_generator",
    "PolicyModelActor": "actor",
    "CriticModelActor": "critic",
    "ReferenceModelActor": "ref",
    "RewardModelActor": "reward_model",
    "RolloutRayActor": "rollout",
    "LLMRayActor": "rollout",  # until OpenRLHF 0.10.1
    "PPOTrainerAsync": "ppo_trainer_async",
    "VLLMLock": "vllm_lock",
}
# They start the others, or hold their lock.
_HELPERS = ("ppo_trainer_async", "vllm_lock")


_LOOP = LeadingLoop()


def install(name: str, module: ModuleType) -> None:
    """Follow one of OpenRLHF's modules."""
    if name == "openrlhf":
        add_rule(role_of)
        add_helpers(*_HELPERS)
        expect(module, "trainer.ppo_trainer", "trainer.ppo_utils.experience_maker", "trainer.ray.launcher")
    elif name == "openrlhf.trainer.ppo_trainer":
        trainer = attribute(module, "BasePPOTrainer")
        for method in _METHODS:
            attribute(trainer, method)
        follow(trainer, "__init__", Watch(TRAINER, _trainer_is_made))
    elif name == "openrlhf.trainer.ppo_utils.experience_maker":
        follow(attribute(module, "RemoteExperienceMaker"), "make_experience_batch", _phase("make_experience"))
        if hasattr(module, "SamplesGenerator"):  # until OpenRLHF 0.9.8
            _follow_generation(module)
    elif name == "openrlhf.trainer.ppo_utils.samples_generator":
        _follow_generation(module)
    elif name == "openrlhf.trainer.ray.launcher":
        follow(attribute(module, "BaseModelActor"), "execute_batch", Watch(TRAINER, _batch_begins))
    elif name == "openrlhf.trainer.ray.ppo_actor":
        trainer = attribute(module, "ActorPPOTrainer")
        follow(trainer, "ppo_train", task(TRAINER, "ppo_train"))
        follow(trainer, "broadcast_to_vllm", task(TRAINER, "broadcast_to_vllm"))
    elif name == "openrlhf.trainer.ray.ppo_critic":
        follow(attribute(module, "CriticPPOTrainer"), "ppo_train", task(TRAINER, "critic_train"))


def _follow_generation(module: ModuleType) -> None:
    follow(attribute(module, "SamplesGenerator"), "generate_samples", Watch(TRAINER, _generation_begins))


def role_of(actor: NewActor) -> tuple[str, int | None] | None:
    """The role of one of OpenRLHF's actors; it creates those of a kind by rank, so they are counted."""
    if not actor.module.startswith("openrlhf."):
        return None
    role = _CLASSES.get(actor.class_name)
    return (role, None) if role else None


def _trainer_is_made(trainer: Any, *_: object, **__: object) -> None:
    """Ray took the methods of its classes before the module was there as a whole, and carries the classes to
    other processes: they are followed in the process, and in the class, that a trainer is made of."""
    for method, hook in _METHODS.items():
        safely(TRAINER, follow, type(trainer), method, hook)
    _LOOP.lead(CONTROLLER)


def _train_step_begins(_: object, __: object, global_step: int, *___: object, **____: object) -> bool:
    _LOOP.begin_step(global_step + 1)
    return True


def _train_step_ends(*_: object) -> None:
    _LOOP.end_step()


def _generation_begins(*_: object, **__: object) -> Any:
    """In the trainer's own process the beginning of a step, in another one a task."""
    caller, done = caller_locals("self", "global_step")
    if not hasattr(caller, "train_step"):
        return begin_task("generation")
    if isinstance(done, int):
        _LOOP.begin_step(done + 1)
    return _LOOP.phase("generation")


def _phase(name: str) -> Watch:
    return Watch(TRAINER, functools.partial(_phase_begins, name))


def _phase_begins(name: str, /, *_: object, **__: object) -> Any:
    return _LOOP.phase(name)


def _batch_begins(_: object, method_name: str, *__: object, **___: object) -> Any:
    """`execute_batch` runs another method of the actor on a share of the batch: the task has its name."""
    return begin_task(method_name)


_METHODS = {
    "train_step": Watch(TRAINER, _train_step_begins, _train_step_ends),
    "ppo_train": _phase("ppo_train"),
    "broadcast_to_vllm": _phase("broadcast_to_vllm"),
}
