"""slime: roles of its Ray actors, steps and phases of its first training actor, tasks of the others.

Its driver times nothing. A step is what slime logs as `perf/step_time`: from the end of one `train` timer of
the training actor to the end of the next, the wait for rollouts (with the weight update in it) and the
training. Its number is `rollout_id + 1`. So rank 0 of the actors leads the job. Phases are its timers, by the
names of `perf/<name>_time`. In `train_async.py` the rollout of a later step runs meanwhile, and is shown
where it ran.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rlprof_ops.runtime.process.actor_labels import NOBODY, NewActor, add_helpers, add_rule
from rlprof_ops.runtime.process.hooks import Intercept, Watch, attribute, expect, follow
from rlprof_ops.trainers.tasks import LeadingLoop, begin_task, task

TRAINER = "slime"
_CLASSES = {
    "RolloutManager": "rollout_manager",
    "SGLangEngine": "rollout",
    "Lock": "lock",
    "InfoActor": "",  # asks for a GPU's number
}
_WAIT, _TRAIN = "train_wait", "train"  # slime's timer waits whenever it does not train


class _State(LeadingLoop):
    """The step of this process where it leads, its timers that have begun, and the group that it creates."""

    def __init__(self) -> None:
        super().__init__()
        self.next, self.last = 1, 0
        self.entered: dict[str, Any] = {}
        self.group: Any = None

    def wait(self, first: int, last: int) -> None:
        """The actor that leads is ready, and waits for the rollout of step `first`."""
        self.next, self.last = first, last
        self.begin(_WAIT)

    def begin(self, name: str) -> None:
        """A timer begins: in the actor that leads a phase, the wait with its step; in another one a task."""
        if self.profiler is None:
            self.entered[name] = begin_task(name) if name != _WAIT else None
            return
        if name == _WAIT and self.step is None and self.next <= self.last:  # it waits after the last one too
            self.begin_step(self.next)
        self.entered[name] = self.phase(name)

    def end(self, name: str) -> None:
        """A timer ended, and with the training's the step."""
        found = self.entered.pop(name, None)
        if found is not None:
            found.__exit__(None, None, None)
        if name == _TRAIN and self.step is not None:
            self.next = self.step + 1
            self.end_step()


_STATE = _State()


def install(name: str, module: ModuleType) -> None:
    """Follow one of slime's modules."""
    if name == "slime":
        add_rule(role_of)
        add_helpers("lock")
        expect(module, "observability.timer", "ray.actor_group")
    elif name == "slime.observability.timer":
        timer = attribute(module, "Timer")
        follow(timer, "end", Watch(TRAINER, _timer_ends, _timer_ended))
        follow(timer, "start", Watch(TRAINER, _timer_begins))
    elif name == "slime.ray.actor_group":
        hook = Watch(TRAINER, _creates, _created)
        follow(attribute(module, "RayTrainGroup"), "_allocate_gpus_for_actor", hook)
    else:
        actor = attribute(module, "MegatronTrainRayActor")
        follow(actor, "init", Intercept(TRAINER, _init_begins, _init_ended))
        follow(actor, "train_critic", task(TRAINER, "train_critic"))


def role_of(actor: NewActor) -> tuple[str, int | None] | None:
    """The role of one of slime's actors: a training actor has that of its group and its place in it, engines
    are counted."""
    bases = [(cls.__module__, cls.__name__) for cls in getattr(actor.cls, "__mro__", ())]
    names = [n for module, n in ((actor.module, actor.class_name), *bases) if module.startswith("slime.")]
    if "TrainRayActor" in names and _STATE.group is not None:
        return str(_STATE.group.role), len(_STATE.group._actor_handlers)
    role = next((_CLASSES[name] for name in names if name in _CLASSES), None)
    return NOBODY if role == "" else (role, None) if role else None


def _creates(group: Any, *_: object, **__: object) -> bool:
    _STATE.group = group
    return True


def _created(*_: object) -> None:
    _STATE.group = None


def _init_begins(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """slime waits from the end of `init` on: what it takes to lead is done before."""
    if _leads(*arguments, **named):
        _STATE.lead("actor", 0, arguments[0]._world_size)


def _init_ended(first: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if _leads(*arguments, **named):
        args = arguments[1]
        critics = args.num_critic_only_steps if args.use_critic else 0  # the actor waits through them
        _STATE.wait(max(_first_rollout(first, args), critics) + 1, args.num_rollout)
    return first


def _first_rollout(answered: int, args: Any) -> int:
    """Where the driver begins: at `start_rollout_id`, which a run without a checkpoint of Megatron's has.
    What `init` has answered counts where it is none, and for an actor made again (`--release-train`).
    """
    given = getattr(args, "start_rollout_id", None)
    is_made_again = bool(getattr(args, "update_weight_start_version", 0))
    return answered if given is None or is_made_again else int(given)


def _leads(actor: Any, _: object, role: str, *__: object, **___: object) -> bool:
    return role == "actor" and actor._rank == 0


def _timer_begins(_: object, name: str, *__: object, **___: object) -> None:
    _STATE.begin(name)


def _timer_ends(_: object, name: str, *__: object, **___: object) -> str:
    return name


def _timer_ended(name: str, _: BaseException | None) -> None:
    _STATE.end(name)
