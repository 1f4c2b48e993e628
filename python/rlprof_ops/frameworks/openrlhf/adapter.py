"""OpenRLHF: roles of its Ray actors, steps and phases of its trainer actor, tasks of its model actors.

A step is what OpenRLHF logs as `Global step n`: the samples that `PPOTrainer.fit` has generated for it, those
which dynamic filtering throws away included, and `train_step`. In asynchronous training it is the training
actor's `train_step` alone; samples are generated in another actor, for a later step, and shown where it ran.
Phases are what OpenRLHF itself times, by the names that it logs them under: generation, make_experience,
ppo_train, and broadcast by the name of the function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from rlprof_ops.frameworks.adapter import attribute, expect, safely, wrap
from rlprof_ops.frameworks.tasks import as_task
from rlprof_ops.runtime.process.actor_labels import NewActor, add_helpers, add_rule

TRAINER = "OpenRLHF"
CONTROLLER = "controller"
_CLASSES = {
    "PPOTrainer": CONTROLLER,
    "TrainingActor": CONTROLLER,
    "GenerateSamplesActor": "sample_generator",
    "PolicyModelActor": "actor",
    "CriticModelActor": "critic",
    "ReferenceModelActor": "ref",
    "RewardModelActor": "reward_model",
    "RolloutRayActor": "rollout",
    "PPOTrainerAsync": "ppo_trainer_async",
    "VLLMLock": "vllm_lock",
}
# They start the others, or hold their lock.
_HELPERS = ("ppo_trainer_async", "vllm_lock")


class _Controller:
    """The step of this process."""

    def __init__(self) -> None:
        self.profiler: Any = None
        self.step: int | None = None

    def prepare(self) -> None:
        """This process has the trainer, and leads."""
        if self.profiler is None:
            from rlprof_ops.runtime import null_profiler, profiler

            self.profiler = profiler.lead(CONTROLLER, 0, 1) or null_profiler.NullProfiler()

    def begin(self, done: int) -> None:
        """The step after `done` ones begins, unless it has."""
        if self.step == done + 1 or self.profiler is None:
            return
        self.step = done + 1
        self.profiler.start_step(self.step)

    def end(self) -> None:
        if self.step is not None:
            step, self.step = self.step, None
            self.profiler.stop_step(step)

    def phase(self, name: str) -> Any:
        """The range of a phase that has begun, None outside of a step."""
        if self.step is None or not self.profiler.active:
            return None
        found = self.profiler.range(name)
        found.__enter__()
        return found


_CONTROLLER = _Controller()


def install(name: str, module: ModuleType) -> None:
    """Follow one of OpenRLHF's modules."""
    if name == "openrlhf":
        add_rule(role_of)
        add_helpers(*_HELPERS)
        expect(module, "trainer.ppo_trainer", "trainer.ppo_utils.samples_generator", "trainer.ray.launcher")
    elif name == "openrlhf.trainer.ppo_trainer":
        trainer = attribute(module, "BasePPOTrainer")
        for method in _METHODS:
            attribute(trainer, method)
        wrap(trainer, "__init__", _follow)
    elif name == "openrlhf.trainer.ppo_utils.experience_maker":
        wrap(attribute(module, "RemoteExperienceMaker"), "make_experience_batch", _phase("make_experience"))
    elif name == "openrlhf.trainer.ppo_utils.samples_generator":
        wrap(attribute(module, "SamplesGenerator"), "generate_samples", _generate_samples)
    elif name == "openrlhf.trainer.ray.launcher":
        wrap(attribute(module, "BaseModelActor"), "execute_batch", _execute_batch)
    elif name == "openrlhf.trainer.ray.ppo_actor":
        trainer = attribute(module, "ActorPPOTrainer")
        wrap(trainer, "ppo_train", as_task(TRAINER, "ppo_train"))
        wrap(trainer, "broadcast_to_vllm", as_task(TRAINER, "broadcast_to_vllm"))
    elif name == "openrlhf.trainer.ray.ppo_critic":
        wrap(attribute(module, "CriticPPOTrainer"), "ppo_train", as_task(TRAINER, "critic_train"))


def role_of(actor: NewActor) -> tuple[str, int | None] | None:
    """The role of one of OpenRLHF's actors; it creates those of a kind by rank, so they are counted."""
    if not actor.module.startswith("openrlhf."):
        return None
    role = _CLASSES.get(actor.class_name)
    return (role, None) if role else None


def _follow(before: Any) -> Any:
    """Ray took the methods of its classes before the module was there as a whole, and carries the classes to
    other processes: they are wrapped in the process, and in the class, that a trainer is made of."""

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        for method, make in _METHODS.items():
            safely(TRAINER, wrap, type(self), method, make)
        safely(TRAINER, _CONTROLLER.prepare)
        before(self, *arguments, **named)

    return __init__


def _train_step(before: Any) -> Any:
    def train_step(self: Any, rollout_samples: Any, global_step: int, *rest: Any, **named: Any) -> Any:
        safely(TRAINER, _CONTROLLER.begin, global_step)
        try:
            return before(self, rollout_samples, global_step, *rest, **named)
        finally:
            safely(TRAINER, _CONTROLLER.end)

    return train_step


def _generate_samples(before: Any) -> Any:
    """In the trainer's own process the beginning of a step, in another one a task."""
    task = as_task(TRAINER, "generation")(before)

    def generate_samples(self: Any, *arguments: Any, **named: Any) -> Any:
        caller = sys._getframe(1).f_locals
        if not hasattr(caller.get("self"), "train_step"):
            return task(self, *arguments, **named)
        done = caller.get("global_step")
        if isinstance(done, int):
            safely(TRAINER, _CONTROLLER.begin, done)
        begun = safely(TRAINER, _CONTROLLER.phase, "generation")
        try:
            return before(self, *arguments, **named)
        finally:
            if begun is not None:
                safely(TRAINER, begun.__exit__, None, None, None)

    return generate_samples


def _phase(name: str) -> Any:
    def make(before: Any) -> Any:
        def timed(self: Any, *arguments: Any, **named: Any) -> Any:
            begun = safely(TRAINER, _CONTROLLER.phase, name)
            try:
                return before(self, *arguments, **named)
            finally:
                if begun is not None:
                    safely(TRAINER, begun.__exit__, None, None, None)

        return timed

    return make


_METHODS = {
    "train_step": _train_step,
    "ppo_train": _phase("ppo_train"),
    "broadcast_to_vllm": _phase("broadcast_to_vllm"),
}


def _execute_batch(before: Any) -> Any:
    """`execute_batch` runs another method of the actor on a share of the batch: the task has its name."""

    def execute_batch(self: Any, method_name: str, *arguments: Any, **named: Any) -> Any:
        return as_task(TRAINER, method_name)(before)(self, method_name, *arguments, **named)

    return execute_batch
