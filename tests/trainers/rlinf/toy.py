"""RLinf's scheduler with small workers of our own: toy.py STEPS [KEY=VALUE of its configuration ...]

Cluster, WorkerGroup, Channel and Worker.timer are RLinf's, unchanged; its GRPO needs GPUs, so the work is a
few matrix products. `profiling.enabled=true` with the other keys of RLinf's own profiling configuration
opens its windows.
"""

from __future__ import annotations

import os
import sys
import time

import torch
from omegaconf import OmegaConf
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker

WORK = 50


class Rollout(Worker):
    def __init__(self):
        super().__init__()

    def init_worker(self):
        return self._rank

    @Worker.timer("rollout/generate")
    def generate(self, output_channel: Channel):
        batch = torch.randn(64, 64)
        for _ in range(WORK):
            batch = torch.tanh(batch @ batch)
        output_channel.put({"rank": self._rank, "batch": batch})
        return os.getpid()


class Actor(Worker):
    def __init__(self):
        super().__init__()

    def init_worker(self):
        return self._rank

    @Worker.timer("actor/run_training")
    def run_training(self, input_channel: Channel):
        batch = input_channel.get()["batch"]
        weight = torch.randn(64, 64, requires_grad=True)
        (batch @ weight).sum().backward()
        return os.getpid()


def main() -> None:
    steps = int(sys.argv[1])
    config = OmegaConf.merge(
        {"num_nodes": 1, "component_placement": {"actor": "0", "rollout": "0"}},
        OmegaConf.from_dotlist(sys.argv[2:]),
    )
    profiled = bool(OmegaConf.select(config, "profiling.enabled"))
    cluster = Cluster(cluster_cfg=config)
    channel = Channel.create("batches")
    one_node = NodePlacementStrategy([0])
    groups = [
        Actor.create_group().launch(cluster=cluster, name="ActorGroup", placement_strategy=one_node),
        Rollout.create_group().launch(cluster=cluster, name="RolloutGroup", placement_strategy=one_node),
    ]
    actor, rollout = groups
    [group.init_worker().wait() for group in groups]
    for step in range(1, steps + 1):
        began = time.monotonic()
        if profiled:
            [group.start_profile(step).wait() for group in groups]
        generated, trained = rollout.generate(channel), actor.run_training(channel)
        pids = [*generated.wait(), *trained.wait()]
        if profiled:
            [group.stop_profile().wait() for group in groups]
        print(f"step {step} took {time.monotonic() - began:.3f} s, workers {pids}", flush=True)


if __name__ == "__main__":
    main()
