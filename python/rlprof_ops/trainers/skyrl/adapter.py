"""SkyRL: roles of its Ray actors, steps and phases of its trainers' `Timer`, tasks of its workers.

A step is `global_step` of the trainer, from the beginning to the end of its timer `step`. An attempt that
dynamic sampling fills up, or that an exhausted epoch leaves, is a part of the step, as in SkyRL's own
`timing/step`. Phases are the timers inside it, by the names of `timing/<name>`: those of the coroutine that
runs the step, and of the threads that it awaits. What another coroutine times (the generation loop of the
asynchronous trainers) is for a later step, and is shown where it ran.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from contextvars import ContextVar
from types import ModuleType
from typing import Any, NamedTuple

from rlprof_ops.runtime.process.actor_labels import NOBODY, NewActor, add_rule
from rlprof_ops.runtime.process.hooks import Watch, attribute, caller_locals, expect, follow
from rlprof_ops.runtime.process.place import asyncio_task
from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers import sample_versions
from rlprof_ops.trainers.tasks import LeadingLoop, task

TRAINER = "SkyRL"
# By the beginning of the class name; of a class of the user's, by that of its bases.
_KINDS = (
    (re.compile(r"(?:FSDP|Megatron)?PolicyWorker"), ("policy_worker", None)),
    (re.compile(r"(?:FSDP|Megatron)?CriticWorker"), ("critic_worker", None)),
    (re.compile(r"(?:FSDP|Megatron)?RefWorker"), ("ref_worker", None)),
    (re.compile(r"VLLMServerActor"), ("inference_engine", None)),
    (re.compile(r"InfoActor|RegistryActor"), NOBODY),  # asks for a GPU's number; keeps functions by name
)
_CONVERTS = "convert_generation_group_mini_batch_to_training_input"
_SENDS = "broadcast_to_inference_engines"
# Module of workers -> class -> its work. FSDP's worker runs the work of its base class.
_WORK: dict[str, dict[str, tuple[str, ...]]] = {
    "workers.worker": {
        "PolicyWorkerBase": ("forward", "forward_backward", "optim_step"),
        "CriticWorkerBase": ("forward", "forward_backward", "optim_step"),
        "RefWorkerBase": ("forward",),
    },
    "workers.fsdp.fsdp_worker": {"FSDPPolicyWorkerBase": (_SENDS,)},
    "workers.megatron.megatron_worker": {
        "MegatronPolicyWorkerBase": ("forward", "forward_backward", "optim_step", _SENDS),
        "MegatronRefWorkerBase": ("forward",),
    },
}


class _Entered(NamedTuple):
    """A timer that has begun, and the range that it is here."""

    timer: int
    range: Any


class _Controller(LeadingLoop):
    """The step of this process, the task that runs it, and its timers that have begun, the innermost last."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.task: Any = None
        self.entered: list[_Entered] = []

    def begin(self, timer: int, name: str) -> None:
        """A timer begins: a step, a phase of it, or nothing of ours."""
        if name == "step":
            self._enter_step(timer)
        elif self._is_inside() and (phase := self.phase(name)) is not None:
            self.entered.append(_Entered(timer, phase))

    def _enter_step(self, timer: int) -> None:
        [owner] = caller_locals("self")
        number = getattr(owner, "global_step", None)
        if not isinstance(number, int):
            return
        self.lead(CONTROLLER)
        self.task, self.entered = asyncio_task(), [_Entered(timer, nullcontext())]
        _STEP_TIMER.set(self.entered[0])
        number = number or self.steps + 1  # 0: its benchmark of SFT counts none
        self.steps = number
        self.begin_step(number)  # unless this is its next attempt

    def _is_inside(self) -> bool:
        """Whether this code is the step's: its coroutine, or a thread that was given its context."""
        begun = bool(self.entered) and _STEP_TIMER.get() is self.entered[0]
        return begun and asyncio_task() in (None, self.task)

    def end(self, timer: int, goes_on: bool) -> None:
        """A timer ended, and with it what is open inside. The step ends with its own, unless it is tried
        again."""
        timers = [entered.timer for entered in self.entered]
        if timer not in timers:
            return
        for _ in timers[timers.index(timer) :]:
            self.entered.pop().range.__exit__(None, None, None)
        if not self.entered and not goes_on:
            self.end_step()


# The timer of the step that this code works for; threads and tasks that are begun in a context inherit it.
_STEP_TIMER: ContextVar[_Entered | None] = ContextVar("rlprof_skyrl_step", default=None)
_CONTROLLER = _Controller()


def install(name: str, module: ModuleType) -> None:
    """Follow one of SkyRL's modules."""
    if name == "skyrl":
        add_rule(role_of)
        expect(module, "train.utils.utils", "backends.skyrl_train.workers.worker")
    elif name == "skyrl.train.utils.utils":
        timer = attribute(module, "Timer")
        for begin, end in (("__enter__", "__exit__"), ("__aenter__", "__aexit__")):
            follow(timer, end, Watch(TRAINER, _timer_ends, _timer_ended))
            follow(timer, begin, Watch(TRAINER, _timer_begins))
    elif name == "skyrl.train.fully_async_trainer":
        follow(attribute(module, "FullyAsyncRayPPOTrainer"), _CONVERTS, Watch(TRAINER, _trained))
    else:
        for cls, functions in _WORK[name.removeprefix("skyrl.backends.skyrl_train.")].items():
            [role] = (role.removesuffix("worker") for kind, (role, _) in _KINDS if kind.match(cls))
            for function in functions:
                label = function if function == _SENDS else f"{role}{function}"
                follow(attribute(module, cls), function, task(TRAINER, label))


def role_of(actor: NewActor) -> tuple[str, int | None] | None:
    """The role of one of SkyRL's actors; it creates those of a kind by rank, so they are counted."""
    bases = ((cls.__module__, cls.__name__) for cls in getattr(actor.cls, "__mro__", ()))
    names = [
        name for module, name in ((actor.module, actor.class_name), *bases) if module.startswith("skyrl.")
    ]
    return next((role for name in names for kind, role in _KINDS if kind.match(name)), None)


def _trained(trainer: Any, cur_generation_group_mini_batch: Any, *_: object, **__: object) -> None:
    """Its version is the step in which a group's generation began."""
    made = [(group.global_step_when_scheduled,) * 2 for group in cur_generation_group_mini_batch]
    sample_versions.trained(trainer.global_step, trainer.global_step, made, unit="prompt groups")


def _timer_begins(timer: Any, *_: object, **__: object) -> None:
    _CONTROLLER.begin(id(timer), timer.message)


def _timer_ends(timer: Any, *_: object, **__: object) -> tuple[int, bool]:
    told = caller_locals("keep_sampling", "epoch_exhausted") if timer.message == "step" else ()
    return id(timer), any(value is True for value in told)


def _timer_ended(timer: tuple[int, bool], _: BaseException | None) -> None:
    _CONTROLLER.end(*timer)
