"""RLinf's AsyncEmbodiedRunner with small workers: toy_asynchronous.py STEPS

Cluster, groups, channels, Worker.timer and the runner's loop are RLinf's, unchanged, as in toy.py. Steps 1
and 3 begin while there are too few samples: RLinf skips the attempt, waits a second and tries again.
"""

from __future__ import annotations

import sys
import time

import torch
import toy
from omegaconf import OmegaConf
from rlinf.runners.async_embodied_runner import AsyncEmbodiedRunner
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker

SKIPPED = (0, 3)  # the calls of run_training that find too few samples


class Stoppable(toy.Toy):
    """What RLinf stops at the end of the training."""

    def stop(self) -> None:
        """Nothing of these goes on by itself."""


class Env(Stoppable):
    def interact(self, **_):
        pass


class Rollout(Stoppable):
    def generate(self, **_):
        pass

    def sync_model_from_actor(self):
        self.work()


class Actor(Stoppable):
    def sync_model_to_rollout(self):
        self.work()

    def recv_rollout_trajectories(self, **_):
        pass

    @Worker.timer("run_training")
    def run_training(self):
        self.calls = getattr(self, "calls", -1) + 1
        if self.calls in SKIPPED:
            return {}
        time.sleep(0.3)
        weight = torch.randn(128, 128, requires_grad=True)
        (self.work() @ weight).sum().backward()
        return {"loss": float(weight.grad.mean())}


class Console(toy.Console):
    """This runner counts a step before it logs it."""

    def log(self, data: dict[str, float], step: int, **more: object) -> None:
        super().log(data, step - 1, **more)


def main() -> None:
    steps = int(sys.argv[1])
    cluster = OmegaConf.create(
        {"num_nodes": 1, "component_placement": {"actor": "0", "rollout": "0", "env": "0"}}
    )
    runner = {
        "weight_sync_interval": 1,
        "max_epochs": steps,
        "val_check_interval": -1,
        "save_interval": -1,
        "logger": {"logger_backends": []},
    }
    config = OmegaConf.create({"cluster": cluster, "runner": runner, "actor": {}})
    scheduler = Cluster(cluster_cfg=cluster)
    groups = {
        kind.__name__.lower(): kind.create_group().launch(
            cluster=scheduler, name=f"{kind.__name__}Group", placement_strategy=NodePlacementStrategy([0])
        )
        for kind in (Actor, Rollout, Env)
    }
    embodied = AsyncEmbodiedRunner(config, **groups, reward=None)
    embodied.metric_logger = Console()
    embodied.init_workers()
    embodied.run()


if __name__ == "__main__":
    main()
