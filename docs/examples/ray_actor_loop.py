"""A Ray trainer of two actors with windows and phases: a driver creates them, each opens its own windows.

    RLPROF_STEPS=3:5 RLPROF_WORKERS='*_worker' RLPROF_BACKEND=torch python docs/examples/ray_actor_loop.py

Under ray.sub nothing is set by hand but the request. On its own, nsight windows need the plugin: see `main`.
"""

import os
import time

import ray

from rlprof_ops import rayenv
from rlprof_ops.request import load_request
from rlprof_ops.runtime import profiler


@ray.remote
class PolicyWorker:
    def __init__(self, rank: int, world_size: int) -> None:
        self.prof = profiler.from_env(worker="policy_worker", rank=rank, world_size=world_size)

    def train_step(self, step: int) -> float:
        with self.prof.step(step):
            with self.prof.range("logprob"):
                time.sleep(0.01)
            with self.prof.range("train"):
                time.sleep(0.02)
        return 1.0 / step

    def close(self) -> None:
        self.prof.close()


def main() -> None:
    if "RLPROF_REQUEST_JSON" not in os.environ:  # ray.sub has done this already
        os.environ.update(rayenv.environment(os.environ))
        os.environ["RLPROF_REQUEST_JSON"] = load_request(env=os.environ).to_json()
        ray.init(num_cpus=2, include_dashboard=False)
    workers = [
        PolicyWorker.options(runtime_env=profiler.runtime_env("policy_worker", rank)).remote(rank, 2)
        for rank in range(2)
    ]
    for step in range(1, 7):
        losses = ray.get([worker.train_step.remote(step) for worker in workers])
        print(f"step {step}: loss {losses[0]:.3f}", flush=True)
    ray.get([worker.close.remote() for worker in workers])


if __name__ == "__main__":
    main()
