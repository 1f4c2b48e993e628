"""TRL (and any `transformers.Trainer`): steps from the callback handler, phases from `trl.extras.profiling`.

A step is `TrainerState.global_step + 1` from `on_step_begin` to `on_step_end`: one optimizer step with all
its micro-batches. Phases are what TRL times itself in `ProfilingContext`, by the design's words: generation,
reward, logprob (of the policy and the reference, outside the loss), weight_sync. What follows from the loss
on, the backward pass and the optimizer, is timed by nobody and is `train` here: from the loss to the next
batch or the step's end.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from rlprof_ops.runtime.process.hooks import UnknownShape, Watch, attribute, expect, follow
from rlprof_ops.trainers.tasks import LeadingLoop

WORKER = "trainer"
_PHASES = {
    "transformers.generate": "generation",
    "transformers.generate_batch": "generation",
    "vLLM.generate": "generation",
    "_calculate_rewards": "reward",
    "_get_per_token_logps_and_entropies": "logprob",
    "sync_weights": "weight_sync",
}
_TRAIN = "compute_loss"
_BATCH = "_prepare_inputs"


class _Training(LeadingLoop):
    """The step and the phases of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.train: Any = None
        self.contexts: dict[int, list[Any]] = {}  # of TRL's contexts that are entered, by their identity

    def begin(self, args: Any, state: Any) -> None:
        if self.profiler is None:
            self.lead(WORKER, int(args.process_index), int(args.world_size))
        self.begin_step(int(state.global_step) + 1)

    def end_step(self) -> None:
        """The step has ended, and with it its training and what is left of TRL's contexts."""
        self.end_train()
        self.contexts.clear()
        super().end_step()

    def begin_train(self) -> None:
        """The loss of one batch begins: the training of this batch does."""
        self.end_train()
        self.train = self.phase("train")

    def end_train(self) -> None:
        train, self.train = self.train, None
        if train is not None:
            train.__exit__(None, None, None)

    def timed(self, label: str) -> Any:
        """The range, which has begun, of what TRL times as `label` ("GRPOTrainer.<name>"); None when it is no
        phase of a step."""
        name = next((timed for timed in _OWN if label.endswith(f".{timed}")), "")
        if self.step is None or not self.profiler.active:
            return None
        if name == _BATCH:
            self.end_train()
        elif name == _TRAIN:
            self.begin_train()
        phase = _PHASES.get(name)
        if phase is None or (self.train is not None and phase == "logprob"):
            return None
        return self.phase(phase)


_OWN = (*_PHASES, _TRAIN, _BATCH)
_TRAINING = _Training()


def install(name: str, module: ModuleType) -> None:
    """Follow the modules; each alone is of use."""
    if name == "trl":
        expect(module, "extras.profiling")
    elif name == "transformers.trainer_callback":
        handler = attribute(module, "CallbackHandler")
        follow(handler, "on_step_end", Watch("TRL", _step_ends, _step_ended))
        follow(handler, "on_step_begin", Watch("TRL", _step_begins))
    elif name == "trl.extras.profiling":
        context = attribute(module, "ProfilingContext")
        follow(context, "__exit__", Watch("TRL", _leave, _left))
        follow(context, "__enter__", Watch("TRL", _enter, _entered))


def _step_begins(_: object, args: Any = None, state: Any = None, *__: object, **___: object) -> None:
    if state is None:
        raise UnknownShape("on_step_begin is given no state")
    _TRAINING.begin(args, state)


def _step_ends(*_: object, **__: object) -> bool:
    _TRAINING.end_train()
    return True


def _step_ended(*_: object) -> None:
    _TRAINING.end_step()


def _enter(context: Any, *_: object, **__: object) -> int | None:
    found = _TRAINING.timed(context.name)
    if found is None:
        return None
    _TRAINING.contexts.setdefault(id(context), []).append(found)
    return id(context)


def _entered(context: int, error: BaseException | None) -> None:
    if error is not None:  # a context that could not be entered is never left
        _TRAINING.contexts[context].pop().__exit__(type(error), error, None)


def _leave(context: Any, *error: object, **_: object) -> Any:
    entered = _TRAINING.contexts.get(id(context))
    if not entered:
        return None
    kind, value, traceback = (*error, None, None, None)[:3]
    found = entered.pop()
    if not entered:
        del _TRAINING.contexts[id(context)]
    return functools.partial(found.__exit__, kind, value, traceback)


def _left(leave: Any, _: object) -> None:
    leave()
