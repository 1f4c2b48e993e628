"""Trainers with callbacks, and a loop of your own: the same few lines for Lightning, transformers and
Accelerate.

Each only needs what its trainer calls or has, so this file imports none of them.
"""

from collections.abc import Callable, Iterable
from typing import Any

from rlprof_ops.runtime import profiler


class LightningRlprof:
    """`Trainer(callbacks=[LightningRlprof()])`; make it a subclass of `lightning.pytorch.Callback` in your
    code.
    """

    def __init__(self, worker: str = "trainer") -> None:
        self._worker = worker
        self._prof: Any = None

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._prof = profiler.from_env(
            worker=self._worker, rank=trainer.global_rank, world_size=trainer.world_size
        )

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._prof.start_step(trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._prof.stop_step()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._prof.abort_step()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._prof.close()


class TransformersRlprof:
    """`Trainer(callbacks=[TransformersRlprof()])`; make it a subclass of `transformers.TrainerCallback` in
    your code.
    """

    def __init__(self, worker: str = "trainer") -> None:
        self._worker = worker
        self._prof: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._prof = profiler.from_env(
            worker=self._worker, rank=args.process_index, world_size=args.world_size
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._prof.start_step(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._prof.stop_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._prof.close()


def accelerate_loop(
    accelerator: Any, batches: Iterable[Any], train: Callable[[Any], None], worker: str = "trainer"
) -> None:
    """A loop under Hugging Face Accelerate: rank and world are the accelerator's, a step is what the
    optimizer takes.

    With gradient accumulation several batches make one step: `start_step` of a step that is open changes
    nothing.
    """
    prof = profiler.from_env(
        worker=worker, rank=accelerator.process_index, world_size=accelerator.num_processes
    )
    step = 1
    try:
        for batch in batches:
            prof.start_step(step)
            with accelerator.accumulate(), prof.range("train"):
                train(batch)
            if accelerator.sync_gradients:
                prof.stop_step()
                step += 1
    except BaseException:
        prof.abort_step()
        raise
    finally:
        prof.close()


def main() -> None:
    """The same by hand, with the transformers callback driven as its trainer drives it."""
    from types import SimpleNamespace

    callback = TransformersRlprof()
    args, state = SimpleNamespace(process_index=0, world_size=1), SimpleNamespace(global_step=0)
    callback.on_train_begin(args, state, None)
    for _ in range(6):
        callback.on_step_begin(args, state, None)
        callback.on_step_end(args, state, None)
        state.global_step += 1
    callback.on_train_end(args, state, None)


if __name__ == "__main__":
    main()
