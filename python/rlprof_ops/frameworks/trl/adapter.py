"""TRL (and any `transformers.Trainer`): steps from the callback handler, phases from `trl.extras.profiling`.

A step is `TrainerState.global_step + 1` from `on_step_begin` to `on_step_end`: one optimizer step with all
its micro-batches. Phases are what TRL times itself in `ProfilingContext`, by the design's words: generation,
reward, logprob (of the policy and the reference, outside the loss), weight_sync. What follows from the loss
on, the backward pass and the optimizer, is timed by nobody and is `train` here: from the loss to the next
batch or the step's end.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rlprof_ops.frameworks.adapter import attribute, expect, leader, safely, wrap

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


class _Training:
    """The step and the phases of this process."""

    def __init__(self) -> None:
        self.profiler: Any = None
        self.step: int | None = None
        self.train: Any = None

    def begin(self, args: Any, state: Any) -> None:
        if self.profiler is None:
            rank, world = int(args.process_index), int(args.world_size)
            self.profiler = leader(WORKER, rank, world)
        self.step = int(state.global_step) + 1
        self.profiler.start_step(self.step)

    def end(self) -> None:
        self.end_train()
        if self.step is not None and self.profiler is not None:
            step, self.step = self.step, None
            self.profiler.stop_step(step)

    def begin_train(self) -> None:
        """The loss of one batch begins: the training of this batch does."""
        self.end_train()
        if self.step is not None and self.profiler.active:
            self.train = self.profiler.range("train")
            self.train.__enter__()

    def end_train(self) -> None:
        train, self.train = self.train, None
        if train is not None:
            train.__exit__(None, None, None)

    def phase(self, label: str) -> Any:
        """The range of what TRL times as `label` ("GRPOTrainer.<name>"), None when it is no phase of a
        step."""
        name = next((timed for timed in _OWN if label.endswith(f".{timed}")), "")
        if self.step is None or self.profiler is None or not self.profiler.active:
            return None
        if name == _BATCH:
            self.end_train()
        elif name == _TRAIN:
            self.begin_train()
        phase = _PHASES.get(name)
        if phase is None or (self.train is not None and phase == "logprob"):
            return None
        return self.profiler.range(phase)


_OWN = (*_PHASES, _TRAIN, _BATCH)
_TRAINING = _Training()


def install(name: str, module: ModuleType) -> None:
    """Follow the modules; each alone is of use."""
    if name == "trl":
        expect(module, "extras.profiling")
    elif name == "transformers.trainer_callback":
        handler = attribute(module, "CallbackHandler")
        wrap(handler, "on_step_begin", _on_step_begin)
        wrap(handler, "on_step_end", _on_step_end)
    elif name == "trl.extras.profiling":
        context = attribute(module, "ProfilingContext")
        attribute(context, "__init__")
        wrap(context, "__enter__", _enter)
        wrap(context, "__exit__", _exit)


def _on_step_begin(before: Any) -> Any:
    def on_step_begin(self: Any, args: Any, state: Any, control: Any, *rest: Any, **named: Any) -> Any:
        safely("TRL", _TRAINING.begin, args, state)
        return before(self, args, state, control, *rest, **named)

    return on_step_begin


def _on_step_end(before: Any) -> Any:
    def on_step_end(self: Any, args: Any, state: Any, control: Any, *rest: Any, **named: Any) -> Any:
        safely("TRL", _TRAINING.end_train)
        try:
            return before(self, args, state, control, *rest, **named)
        finally:
            safely("TRL", _TRAINING.end)

    return on_step_end


_ATTRIBUTE = "_rlprof_range"


def _enter(before: Any) -> Any:
    def enter(self: Any) -> Any:
        found = safely("TRL", _TRAINING.phase, self.name)
        if found is not None:
            setattr(self, _ATTRIBUTE, found)
            safely("TRL", found.__enter__)
        return before(self)

    return enter


def _exit(before: Any) -> Any:
    def leave(self: Any, kind: Any, error: Any, traceback: Any) -> Any:
        try:
            return before(self, kind, error, traceback)
        finally:
            found = self.__dict__.pop(_ATTRIBUTE, None)
            if found is not None:
                safely("TRL", found.__exit__, kind, error, traceback)

    return leave
