"""A script of Lightning as its documentation shows it: fit.py KIND [CHECKPOINT], which is automatic, manual
(two optimizers), ddp (two ranks on gloo), profiled (by Lightning's own PyTorchProfiler) or saved (with a
validation and a checkpoint in the middle of each epoch, from one of which it may go on). Lightning is the
package named in $LIGHTNING.

It prints each loss, and what Lightning's own profiler measured: `timed ACTION SECONDS`.
"""

import importlib
import itertools
import os
import sys
import time
from collections.abc import Callable

import torch

pl = importlib.import_module(os.environ.get("LIGHTNING", "lightning.pytorch"))
BATCHES, MICRO_BATCHES, EPOCHS = 8, 2, 2
FIRST, LAST = 4, 6  # calls of the schedule of Lightning's own profiler: from the second batch to the fifth


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4 * BATCHES * (2 if sys.argv[1] == "ddp" else 1)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.full((32,), index / 64)


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
        self.automatic_optimization = sys.argv[1] != "manual"

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        time.sleep(0.02)
        loss = self.net(batch).square().mean()
        print(f"loss {self.global_rank} {index} {loss.item()!r}\n", end="", flush=True)
        if not self.automatic_optimization:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.net(batch).square().mean())
                optimizer.step()
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        time.sleep(0.01)

    def configure_optimizers(self):
        if not self.automatic_optimization:
            return [torch.optim.SGD(layer.parameters(), 0.1) for layer in (self.net[0], self.net[2])]
        return torch.optim.Adam(self.parameters(), 0.1)

    def on_train_batch_end(self, *_) -> None:
        print(f"global_step {self.global_step}\n", end="", flush=True)


class Timed(pl.profilers.Profiler):
    """Each action's seconds as it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.began: dict[str, float] = {}

    def start(self, action_name: str) -> None:
        self.began[action_name] = time.perf_counter()

    def stop(self, action_name: str) -> None:
        seconds = time.perf_counter() - self.began.pop(action_name)
        print(f"timed {action_name} {seconds:.9f}\n", end="", flush=True)


def once() -> Callable[[int], torch.profiler.ProfilerAction]:
    """A schedule of one cycle in the whole run. Lightning counts the steps of its loops apart and torch's own
    schedules then record again and again, with ranges open around the cycles (see
    `rlprof_ops.backends.torch.open_ranges`): of 37 such runs under malloc's checks, without us, torch 2.13
    ended 4.
    """
    calls, does = itertools.count(), torch.profiler.ProfilerAction

    def action(step: int) -> torch.profiler.ProfilerAction:
        call = next(calls)
        return does.RECORD_AND_SAVE if call == LAST else does.RECORD if FIRST <= call < LAST else does.NONE

    return action


def main(kind: str, checkpoint: str | None = None) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    profiler = Timed()
    if kind == "profiled":
        profiler = pl.profilers.PyTorchProfiler(dirpath="own", filename="own", schedule=once())
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2 if kind == "ddp" else 1,
        strategy="ddp" if kind == "ddp" else "auto",
        max_epochs=EPOCHS,
        accumulate_grad_batches=1 if kind == "manual" else MICRO_BATCHES,
        limit_val_batches=2,
        profiler=profiler,
        logger=False,
        val_check_interval=BATCHES // 2 if kind == "saved" else 1.0,
        callbacks=[pl.callbacks.ModelCheckpoint(".", "{step}", save_top_k=-1)] if kind == "saved" else [],
        enable_checkpointing=kind == "saved",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = [torch.utils.data.DataLoader(Data(), batch_size=4) for _ in range(2)]
    trainer.fit(Module(), *loaders, ckpt_path=checkpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
