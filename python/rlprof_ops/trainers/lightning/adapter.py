"""Lightning: steps and phases of `Trainer.fit`.

A step is one optimizer step with all its batches: from the fetching of the first one to the end of what
Lightning does after the last, a validation that is due there with it. Its number is what Lightning's loggers
show, `trainer.global_step + 1`; with manual optimization, in which a batch may step several optimizers, a
step is a batch. Phases are `data` (the fetching), `train` with forward, backward and optimizer in it, and
`validation`.

With a strategy like `ddp` its own launcher starts the ranks of a node as children of the first one. Each has
a session of its own, though the first one's is around it.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from rlprof_ops.runtime.process.hooks import Intercept, Watch, attribute, caller_locals, follow
from rlprof_ops.runtime.process.launchers import as_a_rank
from rlprof_ops.trainers.tasks import LeadingLoop

TRAINER = "Lightning"
WORKER = "trainer"
_HOOKS = {"training_step": "forward", "backward": "backward"}  # of a strategy


class _Training(LeadingLoop):
    """The step of this process, and the parts of its training that have begun: of those that are in each
    other (`optimizer.step` calls a closure) the innermost one runs."""

    def __init__(self) -> None:
        super().__init__()
        self.fetching: Any = None
        self.parts: list[str] = []
        self.running: Any = None

    def begin(self, loop: Any) -> None:
        """The loop is at its next batch: a step begins unless it has begun."""
        if self.profiler is None:
            self.lead(WORKER, int(loop.trainer.global_rank), int(loop.trainer.world_size))
        self.begin_step(loop._batches_that_stepped + 1)

    def end_step(self) -> None:
        self.fetch_ends()
        self.parts.clear()
        self._run()
        super().end_step()

    def fetch_ends(self) -> None:
        fetching, self.fetching = self.fetching, None
        if fetching is not None:
            fetching.__exit__(None, None, None)

    def begin_part(self, name: str) -> bool | None:
        """A part of the training begins; None where it is none of a step."""
        if self.step is None:
            return None
        self.parts.append(name)
        self._run()
        return True

    def end_part(self) -> None:
        if self.parts:
            self.parts.pop()
            self._run()

    def _run(self) -> None:
        running, self.running = self.running, None
        if running is not None:
            running.__exit__(None, None, None)
        if self.parts:
            self.running = self.phase(self.parts[-1])


_TRAINING = _Training()


def install(name: str, module: ModuleType) -> None:
    """Follow one of Lightning's modules."""
    place = name.rpartition(".")[2]
    if place == "training_epoch_loop":
        loop = attribute(module, "_TrainingEpochLoop")
        attribute(loop, "_on_after_fetch")
        follow(loop, "on_advance_end", Watch(TRAINER, _batch_ends, _batch_ended))
        follow(loop, "advance", Watch(TRAINER, _batch_begins))
        follow(loop, "_on_before_fetch", Watch(TRAINER, _fetch_begins))
        follow(loop, "_on_after_fetch", Watch(TRAINER, _fetch_ends))
    elif place == "evaluation_loop":
        follow(attribute(module, "_EvaluationLoop"), "run", _phase("validation"))
    elif place == "automatic":
        follow(attribute(module, "_AutomaticOptimization"), "run", _phase("train"))
    elif place == "manual":
        follow(attribute(module, "_ManualOptimization"), "run", _phase("train"))
    elif place == "call":
        follow(module, "_call_strategy_hook", Watch(TRAINER, _hook_begins, _part_ends))
    elif place == "subprocess_script":
        follow(module, "_basic_subprocess_cmd", Intercept(TRAINER, finish=_rank_starts))
        follow(module, "_hydra_subprocess_cmd", Intercept(TRAINER, finish=_rank_of_hydra_starts))
    elif place == "optimizer":
        follow(attribute(module, "LightningOptimizer"), "step", _part("optimizer"))
    else:
        follow(attribute(module, "LightningModule"), "manual_backward", _part("backward"))


def _phase(name: str) -> Watch:
    return Watch(TRAINER, functools.partial(_phase_begins, name))


def _part(name: str) -> Watch:
    return Watch(TRAINER, functools.partial(_part_begins, name), _part_ends)


def _batch_begins(loop: Any, *fetcher: Any, **named: Any) -> None:
    if not (loop.restarting and loop._should_check_val_fx(*fetcher, **named) and _trains_nothing(loop)):
        _TRAINING.begin(loop)


def _trains_nothing(loop: Any) -> bool:
    """Whether a loop that goes on from a checkpoint of a validation inside its epoch goes on with that
    validation: 2.5 and newer tell where not.
    """
    if not hasattr(loop, "restarted_on_last"):
        return True
    return bool(loop.val_loop.restarted_mid_evaluation or loop.restarted_on_last)


def _batch_ends(loop: Any, *_: object, **__: object) -> Any:
    return loop


def _batch_ended(loop: Any, _: object) -> None:
    if _TRAINING.step is not None and loop._batches_that_stepped >= _TRAINING.step:
        _TRAINING.end_step()


def _fetch_begins(*_: object, **__: object) -> None:
    _TRAINING.fetch_ends()
    _TRAINING.fetching = _TRAINING.phase("data")


def _fetch_ends(*_: object, **__: object) -> None:
    _TRAINING.fetch_ends()


def _phase_begins(name: str, *_: object, **__: object) -> Any:
    return _TRAINING.phase(name)


def _hook_begins(_: object, hook: str, *__: object, **___: object) -> bool | None:
    name = _HOOKS.get(hook)
    return None if name is None else _TRAINING.begin_part(name)


def _part_begins(name: str, *_: object, **__: object) -> bool | None:
    return _TRAINING.begin_part(name)


def _part_ends(*_: object) -> None:
    _TRAINING.end_part()


def _rank_starts(argv: Any, *_: object) -> list[str]:
    launcher, local_rank = caller_locals("self", "local_rank")
    first = launcher.cluster_environment.node_rank() * launcher.num_processes
    return as_a_rank(WORKER, first + local_rank, argv)


def _rank_of_hydra_starts(made: Any, *_: object) -> tuple[list[str], Any]:
    argv, folder = made
    return _rank_starts(argv), folder
