"""torchrun without Ray: the launcher wraps each selected rank, the loop opens its windows.

    RLPROF_STEPS=3:5 RLPROF_WORKERS=trainer RLPROF_RANKS=0 torchrun --no-python --nproc-per-node 2 \
        python -m rlprof_ops.rayenv.wrap --worker trainer python docs/examples/torchrun.py

Reports: ./rlprof-profiles/local-…-logs/, with a manifest. Torch traces need no launcher: plain `torchrun
docs/examples/torchrun.py`.
"""

import torch

from rlprof_ops.runtime import profiler


@profiler.annotate("train")
def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = model(torch.randn(32, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss)


def main() -> None:
    prof = profiler.from_env(worker="trainer")  # the rank is torchrun's RANK
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 7):
        with prof.step(step):
            loss = train(model, optimizer)
        print(f"step {step}: loss {loss:.3f}", flush=True)
    prof.close()


if __name__ == "__main__":
    main()
