"""Accelerate: steps and phases of a script that has a loop of its own, with an `Accelerator` in it.

A step is an optimizer step with all its micro-batches: from the fetching of the first batch, by a loader that
the script has prepared, to the end of the `accelerator.accumulate` in which an optimizer steps; without it,
to where each prepared optimizer has stepped. Accelerate has no number of it: steps of this process are
counted from 1, after a checkpoint too. Phases are `data`, `forward` (from the beginning of `accumulate` to
that of the backward pass), `backward` and `optimizer`.

A process whose steps another adapter or the script itself tells is left to them (`transformers.Trainer` has
an `Accelerator` too), and so are Ray's workers.
"""

from __future__ import annotations

import sys
import weakref
from types import ModuleType
from typing import Any

from rlprof_ops.runtime.process.hooks import Watch, attribute, caller_locals, follow
from rlprof_ops.runtime.process.worker_identity import is_ray_worker
from rlprof_ops.trainers.tasks import LeadingLoop

TRAINER = "Accelerate"
WORKER = "trainer"
_LOADERS = "accelerate.data_loader"


def _nobody() -> None:
    return None


class _Script(LeadingLoop):
    """The step of this process, and what of it has been done."""

    def __init__(self) -> None:
        super().__init__()
        self.accelerator: Any = _nobody  # a weak reference
        self.count = 0  # of the steps that have begun
        self.accumulating = False
        self.stepped: set[int] = set()  # optimizers, by their identity
        self.forward: Any = None

    def begin(self, accelerator: Any) -> None:
        """Something of a step happens: it begins unless it has begun."""
        if self.profiler is None:
            self._take_the_lead(accelerator)
        if self.step is None and self.begin_step(self.count + 1):
            self.count += 1

    def _take_the_lead(self, accelerator: Any) -> None:
        from rlprof_ops.runtime import null_profiler, profiler

        if is_ray_worker() or not isinstance(profiler.current(), null_profiler.NullProfiler):
            self.profiler = null_profiler.NullProfiler()
        else:
            self.lead(WORKER, int(accelerator.process_index), int(accelerator.num_processes))

    def end_step(self) -> None:
        self.end_forward()
        self.stepped.clear()
        super().end_step()

    def end_forward(self) -> None:
        forward, self.forward = self.forward, None
        if forward is not None:
            forward.__exit__(None, None, None)

    def trains(self) -> bool:
        """Whether a batch that is fetched now is one to train on: an evaluation has `eval()` models, and what
        is computed before any model is prepared (TRL's reference log-probabilities) is no step.
        """
        return any(model.training for model in getattr(self.accelerator(), "_models", ()))


_SCRIPT = _Script()


def install(name: str, module: ModuleType) -> None:
    """Follow one of Accelerate's modules."""
    if name == "accelerate.accelerator":
        accelerator = attribute(module, "Accelerator")
        attribute(accelerator, "backward")
        attribute(accelerator, "prepare")
        follow(accelerator, "accumulate", Watch(TRAINER, _micro_batch_begins, _micro_batch_ended))
        follow(accelerator, "backward", Watch(TRAINER, _backward_begins))
        follow(accelerator, "prepare", Watch(TRAINER, _prepares))
    elif name == "accelerate.optimizer":
        optimizer = attribute(module, "AcceleratedOptimizer")
        follow(optimizer, "step", Watch(TRAINER, _optimizer_begins, _optimizer_ended))
    else:
        attribute(module, "DataLoaderShard")
        torchs = sys.modules.get("torch.utils.data.dataloader")
        if torchs is not None:
            follow(attribute(torchs, "_BaseDataLoaderIter"), "__next__", Watch(TRAINER, _fetch_begins))


def _prepares(accelerator: Any, *_: object, **__: object) -> None:
    _SCRIPT.accelerator = weakref.ref(accelerator)


def _fetch_begins(*_: object, **__: object) -> Any:
    accelerator = _SCRIPT.accelerator()
    if accelerator is None or not _SCRIPT.trains():
        return None
    (loader,) = caller_locals("self")
    if not any(cls.__module__ == _LOADERS for cls in type(loader).__mro__):
        return None
    _SCRIPT.begin(accelerator)
    return _SCRIPT.phase("data")


def _micro_batch_begins(accelerator: Any, *_: object, **__: object) -> bool:
    _SCRIPT.begin(accelerator)
    _SCRIPT.accumulating = True
    _SCRIPT.end_forward()
    _SCRIPT.forward = _SCRIPT.phase("forward")
    return True


def _micro_batch_ended(_: object, error: BaseException | None) -> None:
    _SCRIPT.accumulating = False
    _SCRIPT.end_forward()
    if _SCRIPT.stepped and error is None:
        _SCRIPT.end_step()


def _backward_begins(accelerator: Any, *_: object, **__: object) -> Any:
    _SCRIPT.begin(accelerator)
    _SCRIPT.end_forward()
    return _SCRIPT.phase("backward")


def _optimizer_begins(optimizer: Any, *_: object, **__: object) -> Any:
    if _SCRIPT.step is None or not optimizer.gradient_state.sync_gradients:
        return None
    return optimizer, _SCRIPT.phase("optimizer")


def _optimizer_ended(token: Any, _: object) -> None:
    optimizer, phase = token
    if phase is not None:
        phase.__exit__(None, None, None)
    _SCRIPT.stepped.add(id(optimizer))
    prepared = getattr(_SCRIPT.accelerator(), "_optimizers", ())
    if not _SCRIPT.accumulating and len(_SCRIPT.stepped) >= len(prepared):
        _SCRIPT.end_step()
