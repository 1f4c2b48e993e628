"""RLinf's EmbodiedRunner with small workers: toy.py STEPS [KEY=VALUE of its cluster configuration ...]

Cluster, WorkerGroup, Channel, Worker.timer and the runner's loop are RLinf's, unchanged; its models need
GPUs, so the work is a few matrix products. `profiling.enabled=true` with the other keys of RLinf's own
profiling configuration opens its windows. What RLinf logs as times goes to the console. The worker groups in
TOY_ENDS_IN_ORDER (names with commas) are ended by Ray's own orderly way after the last step.
"""

from __future__ import annotations

import json
import os
import sys
import time

import ray
import torch
from omegaconf import OmegaConf
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker

WORK = 200


class Toy(Worker):
    """A worker of every kind: what the runner calls in all of them."""

    def __init__(self):
        super().__init__()

    def init_worker(self):
        torch.manual_seed(self._rank)
        return os.getpid()

    def set_global_step(self, step: int):
        self.global_step = step

    def work(self):
        batch = torch.randn(128, 128)
        for _ in range(WORK):
            batch = torch.tanh(batch @ batch)
        return batch


class Env(Toy):
    @Worker.timer("env/interact")
    def interact(self, input_channel: Channel, rollout_channel: Channel, actor_channel: Channel, **_):
        rollout_channel.put({"observation": self.work()})
        actor_channel.put(input_channel.get())


class Rollout(Toy):
    @Worker.timer("rollout/generate")
    def generate(self, input_channel: Channel, output_channel: Channel):
        input_channel.get()
        output_channel.put({"rank": self._rank, "action": self.work()})

    def sync_model_from_actor(self):
        self.work()


class Actor(Toy):
    def sync_model_to_rollout(self):
        self.work()

    def recv_rollout_trajectories(self, input_channel: Channel):
        self.trajectory = input_channel.get()

    @Worker.timer("actor/compute_adv")
    def compute_advantages_and_returns(self):
        return {"advantage": float(self.work().mean())}

    @Worker.timer("actor/run_training")
    def run_training(self):
        weight = torch.randn(128, 128, requires_grad=True)
        (self.work() @ weight).sum().backward()
        return {"loss": float(weight.grad.mean())}


class Console:
    """In the place of RLinf's tensorboard: one line a step with the times of its timers, one with losses."""

    log_path = None

    def log(self, data: dict[str, float], step: int, **_: object) -> None:
        if "time/step" in data:
            print(f"step {step + 1} took {data['time/step']:.3f} s", flush=True)
            print(f"times {json.dumps({'step': step + 1, **data})}", flush=True)
        elif losses := {name: value for name, value in data.items() if name.endswith("loss")}:
            print(f"losses {json.dumps({'step': step + 1, **losses})}", flush=True)

    def finish(self) -> None:
        pass


def ended(worker: ray.actor.ActorHandle) -> None:
    """Return when the worker's process has ended: a call of it fails then."""
    for _ in range(600):
        try:
            ray.get(worker.__ray_ready__.remote(), timeout=5)
        except ray.exceptions.RayActorError:
            return
        except ray.exceptions.GetTimeoutError:
            pass
        time.sleep(0.1)
    raise TimeoutError("the worker does not end")


def main() -> None:
    steps = int(sys.argv[1])
    cluster = OmegaConf.merge(
        {"num_nodes": 1, "component_placement": {"actor": "0", "rollout": "0", "env": "0"}},
        OmegaConf.from_dotlist(sys.argv[2:]),
    )
    runner = {
        "weight_sync_interval": 1,
        "max_epochs": steps,
        "val_check_interval": -1,
        "save_interval": -1,
        "logger": {"logger_backends": []},
    }
    config = OmegaConf.create({"cluster": cluster, "runner": runner})
    scheduler = Cluster(cluster_cfg=cluster)
    one_node = NodePlacementStrategy([0])
    groups = {
        kind.__name__.lower(): kind.create_group().launch(
            cluster=scheduler, name=f"{kind.__name__}Group", placement_strategy=one_node
        )
        for kind in (Actor, Rollout, Env)
    }
    embodied = EmbodiedRunner(config, **groups)
    embodied.metric_logger = Console()
    embodied.init_workers()
    embodied.run()
    for name in filter(None, os.environ.get("TOY_ENDS_IN_ORDER", "").split(",")):
        for one in groups[name].worker_info_list:
            one.worker.__ray_terminate__.remote()
            ended(one.worker)


if __name__ == "__main__":
    main()
