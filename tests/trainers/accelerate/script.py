"""A script of Accelerate as its documentation shows it: script.py KIND, which is accumulated, plain (without
`accumulate`, two optimizers), profiled (by `accelerator.profile()`), or unprepared (a loader of torch's).

It prints each loss, and its own clock: `timed PHASE STEP SECONDS`. After each epoch it evaluates.
"""

import contextlib
import sys
import time

import torch
from accelerate import Accelerator
from accelerate.utils import ProfileKwargs

KIND = sys.argv[1]
BATCHES, MICRO_BATCHES, EPOCHS = 8, 2, 2


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4 * BATCHES * accelerator.num_processes

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.full((32,), index / 64)


@contextlib.contextmanager
def timed(phase: str, step: int):
    began = time.perf_counter()
    yield
    print(f"timed {phase} {step} {time.perf_counter() - began:.9f}\n", end="", flush=True)


def evaluate(model, loader) -> None:
    model.eval()
    for batch in loader:
        with torch.no_grad():
            time.sleep(0.01)
            model(batch)
    model.train()


torch.manual_seed(0)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1 if KIND == "plain" else MICRO_BATCHES)
net = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
parts = [net[0], net[2]] if KIND == "plain" else [net]
optimizers = [torch.optim.Adam(part.parameters(), 0.1) for part in parts]
loader, evaluated = (torch.utils.data.DataLoader(Data(), batch_size=4) for _ in range(2))
model, *optimizers = accelerator.prepare(net, *optimizers)
if KIND != "unprepared":
    loader, evaluated = accelerator.prepare(loader, evaluated)


def train(batch: torch.Tensor, step: int) -> None:
    with timed("forward", step):
        time.sleep(0.02)
        loss = model(batch).square().mean()
    print(f"loss {accelerator.process_index} {loss.item()!r}\n", end="", flush=True)
    with timed("backward", step):
        accelerator.backward(loss)
    for optimizer in optimizers:
        with timed("optimizer", step):
            optimizer.step()
        optimizer.zero_grad()


own = ProfileKwargs(output_trace_dir="own", schedule_option={"wait": 2, "warmup": 0, "active": 3})
profiling = accelerator.profile(own) if KIND == "profiled" else contextlib.nullcontext()
step = 1
with profiling as profiler:
    for _ in range(EPOCHS):
        for batch in loader:
            if KIND == "plain":
                train(batch, step)
                step += 1
            else:
                with accelerator.accumulate(model):
                    train(batch, step)
                step += accelerator.sync_gradients
            if profiler is not None:
                profiler.step()
        evaluate(model, evaluated)
print(f"{step - 1} steps", flush=True)
