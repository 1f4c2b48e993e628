"""TRL and any `transformers.Trainer`: steps and phases of its loop, and what `trl.extras.profiling` times.

A step is one optimizer step with all its micro-batches, `TrainerState.global_step + 1`: from when its batches
are fetched to `on_step_end`. Phases are `data` (the fetching), `train` (the micro-batches and the optimizer,
with forward, backward and optimizer in it), and what TRL times itself in `ProfilingContext`, by the design's
words: generation, reward, logprob (of the policy and the reference, outside the loss), weight_sync. Where a
trainer of TRL's makes its batches itself, in a `_prepare_inputs` that TRL times, `train` begins after that,
with the loss.
"""

from __future__ import annotations

import functools
import inspect
import sys
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
    "_move_model_to_vllm": "weight_sync",  # until TRL 0.28
}
_TRAIN = "compute_loss"
_BATCH = "_prepare_inputs"


class _Training(LeadingLoop):
    """The step and the phases of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.train: Any = None
        self.part: Any = None  # of the training: forward, backward or optimizer
        self.contexts: dict[int, list[Any]] = {}  # of TRL's contexts that are entered, by their identity

    def begin(self, args: Any, state: Any) -> None:
        if self.profiler is None:
            self.lead(WORKER, int(args.process_index), int(args.world_size))
            _follow_tokens()
        self.begin_step(state.global_step + 1)

    def end_step(self) -> None:
        """The step has ended, and with it its training and what is left of TRL's contexts."""
        self.end_train()
        self.contexts.clear()
        super().end_step()

    def begin_train(self) -> None:
        """The forward pass of a micro-batch begins."""
        if self.train is None:
            self.train = self.phase("train")
        self.begin_part("forward")

    def begin_part(self, name: str | None) -> None:
        """A part of the training begins, and another one ends; None: that alone."""
        part, self.part = self.part, None
        if part is not None:
            part.__exit__(None, None, None)
        if name is not None and self.train is not None:
            self.part = self.phase(name)

    def end_train(self) -> None:
        self.begin_part(None)
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
            self.end_train()
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
        for event, hook in _OPTIMIZER.items():
            if hasattr(handler, event):
                follow(handler, event, hook)
    elif name == "transformers.trainer":
        trainer = attribute(module, "Trainer")
        follow(trainer, "training_step", Watch("TRL", _micro_batch_begins))
        if hasattr(trainer, "get_batch_samples"):  # since transformers 4.46
            follow(trainer, "get_batch_samples", Watch("TRL", _data_begins))
        if hasattr(getattr(module, "Accelerator", None), "backward"):
            # Accelerate's own adapter, which was there first, follows it too.
            backward = Watch("TRL", _backward_begins, _part_ends)
            follow(module.Accelerator, "backward", backward, "_rlprof_followed_for_trl")
    elif name == "trl.extras.profiling":
        function = inspect.unwrap(getattr(module, "profiling_context", install))
        if inspect.isgeneratorfunction(function):  # until TRL 0.26
            follow(module, "profiling_context", Watch("TRL", _timed))
            return
        context = attribute(module, "ProfilingContext")
        follow(context, "__exit__", Watch("TRL", _leave, _left))
        follow(context, "__enter__", Watch("TRL", _enter, _entered))


def _follow_tokens() -> None:
    """Windows inside a step may open and close at each token of `generate`, which is one long range."""
    criteria = getattr(
        sys.modules.get("transformers.generation.stopping_criteria"), "StoppingCriteriaList", None
    )
    if criteria is not None and _TRAINING.profiler.has_parts(0):
        follow(criteria, "__call__", Watch("TRL", _token_made))


def _token_made(*_: object, **__: object) -> None:
    if _TRAINING.profiler is not None:
        _TRAINING.profiler.visit_own()


def _step_begins(_: object, args: Any = None, state: Any = None, *__: object, **___: object) -> None:
    if state is None:
        raise UnknownShape("on_step_begin is given no state")
    _TRAINING.begin(args, state)


def _data_begins(trainer: Any, *_: object, **__: object) -> Any:
    """The batches of the next step are fetched: it begins."""
    _TRAINING.begin(trainer.args, trainer.state)
    return _TRAINING.phase("data")


def _micro_batch_begins(trainer: Any, *_: object, **__: object) -> None:
    own = getattr(type(trainer), _BATCH, None)
    if not hasattr(own, "__wrapped__"):  # TRL times none that makes the batch first
        _TRAINING.begin_train()


def _backward_begins(*_: object, **__: object) -> bool:
    _TRAINING.begin_part("backward")
    return True


def _optimizer_begins(*_: object, **__: object) -> None:
    _TRAINING.begin_part("optimizer")


def _part_ends(*_: object, **__: object) -> None:
    _TRAINING.begin_part(None)


_OPTIMIZER = {
    "on_pre_optimizer_step": Watch("TRL", _optimizer_begins),
    "on_optimizer_step": Watch("TRL", _part_ends),
}


def _step_ends(*_: object, **__: object) -> bool:
    _TRAINING.end_train()
    return True


def _step_ended(*_: object) -> None:
    _TRAINING.end_step()


def _timed(_: object, name: str, *__: object, **___: object) -> Any:
    return _TRAINING.timed(f".{name}")


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
