"""Trainers with callbacks: the same few lines for Lightning, transformers/Accelerate, and a loop of your own.

Both classes only need the methods that their trainer calls, so this file imports neither.
"""

from typing import Any

from rlprof_ops.runtime import profiler


class LightningRlprof:
    """`Trainer(callbacks=[LightningRlprof()])`; make it a subclass of `lightning.pytorch.Callback` in your code."""

    def __init__(self, worker: str = "trainer") -> None:
        self._worker = worker
        self._prof: Any = None

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._prof = profiler.from_env(worker=self._worker, rank=trainer.global_rank, world_size=trainer.world_size)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._prof.start_step(trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._prof.stop_step()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._prof.abort_step()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._prof.close()


class TransformersRlprof:
    """`Trainer(callbacks=[TransformersRlprof()])`; make it a subclass of `transformers.TrainerCallback` in your code."""

    def __init__(self, worker: str = "trainer") -> None:
        self._worker = worker
        self._prof: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._prof = profiler.from_env(worker=self._worker, rank=args.process_index, world_size=args.world_size)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._prof.start_step(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._prof.stop_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._prof.close()


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
