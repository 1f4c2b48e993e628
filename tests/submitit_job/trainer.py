"""The smallest trainer that profiles: one Ray actor, windows of host memory; as light as a Ray job can be."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import ray

from rlprof_ops.runtime import profiler


@ray.remote(num_cpus=0)
class Policy:
    def __init__(self) -> None:
        self.profiler = profiler.from_env(worker="policy_worker", rank=0)

    def step(self, number: int, seconds: float) -> str:
        with self.profiler.step(number), self.profiler.range("train"):
            time.sleep(seconds)
        return ray.util.get_node_ip_address()

    def close(self) -> None:
        self.profiler.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--step-seconds", type=float, default=0.2)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--stuck-once", type=Path, help="the start that makes this file never begins step 4")
    asked = parser.parse_args()
    ray.init()
    assert len(ray.nodes()) == asked.nodes
    policy = Policy.options(runtime_env=profiler.runtime_env("policy_worker", 0)).remote()
    for number in range(1, asked.steps + 1):
        if number == 4 and asked.stuck_once and not asked.stuck_once.exists():
            asked.stuck_once.touch()
            time.sleep(600)
        print("step", number, "on", ray.get(policy.step.remote(number, asked.step_seconds)), flush=True)
    ray.get(policy.close.remote())


if __name__ == "__main__":
    main()
