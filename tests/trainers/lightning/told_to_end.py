"""A script of Lightning with our profiler made at its top, and a checkpoint where Lightning is told to end: a
SIGTERM comes with the third of six batches. It prints what it did, in order.
"""

import os
import signal

import lightning.pytorch as pl
import torch

from rlprof_ops.runtime import profiler

prof = profiler.from_env(worker="trainer", rank=0)


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        with prof.step(index + 1):
            if index == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return self.net(batch).square().mean()

    def on_train_batch_end(self, *_: object) -> None:
        print("trained", self.global_step, flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Save(pl.Callback):
    """As ModelCheckpoint does with `save_on_exception`."""

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, error: BaseException) -> None:
        trainer.save_checkpoint("last.ckpt")
        print("saved after", type(error).__name__, flush=True)


if __name__ == "__main__":
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        callbacks=[Save()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(6, 4)))
