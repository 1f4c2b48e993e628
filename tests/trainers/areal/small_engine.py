"""What AReaL's workers hold in the stead of a model: a matrix on gloo, whose work only takes time."""

import time

import torch
import torch.distributed as dist
from areal.api import TrainEngine
from areal.api.cli_args import PPOActorConfig
from areal.trainer.ppo.actor import PPOActor
from areal.utils import perf_tracer
from areal.utils.perf_tracer import trace_perf

EXPERIMENT = {"experiment_name": "small", "trial_name": "one"}


class SmallEngine(TrainEngine):
    """Answers what AReaL's controllers ask of an engine."""

    initialized = False
    version = 0
    is_data_parallel_head = current_data_parallel_head = None
    data_parallel_world_size = data_parallel_rank = context_and_model_parallel_group = None

    def __init__(self, config):
        self.lr = 1.0

    def create_process_group(self, parallel_strategy=None):
        dist.init_process_group("gloo")
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        self.context_and_model_parallel_group = alone[dist.get_rank()]
        self.current_data_parallel_head = dist.get_rank
        self.is_data_parallel_head = lambda: True

    def initialize(self, addr=None, ft_spec=None):
        self.initialized = True

    def nothing(self, *_, **__):
        return None

    train = step_lr_scheduler = clear_batches = update_weights = nothing

    def set_version(self, version):
        self.version = version

    def get_version(self):
        return self.version

    def train_batch(self, *_, **__):
        return {}

    def fetch_buffer_stats(self):
        return {"num_entries": 0}

    def config_perf_tracer(self, config, rank, role):
        perf_tracer.configure(config, rank=rank, role=role)

    def save_perf_tracer(self, step=None, force=False):
        perf_tracer.save(step=step, force=force)

    def export_stats(self):
        return {"loss": self.loss}

    @trace_perf("small_engine.compute_logp", category="compute")
    def compute_logp(self, data):
        time.sleep(0.03)
        return [each["input_ids"].float() for each in data]

    @trace_perf("small_engine.compute_advantages", category="compute")
    def compute_advantages(self, data):
        return [{**each, "advantages": each["prox_logp"]} for each in data]

    @trace_perf("small_engine.ppo_update", category="compute")
    def ppo_update(self, data):
        time.sleep(0.05 * (1 + dist.get_rank()))
        found = sum(each["advantages"].sum() for each in data)
        dist.all_reduce(found)
        self.loss = found.item()
        self.areals_update(torch.cat([each["versions"] for each in data]))

    def areals_update(self, versions):
        """AReaL's own, of a model that learns nothing."""
        actor, zeros = PPOActor.__new__(PPOActor), torch.zeros(versions.shape)
        actor.engine, actor.config, actor.m2_threshold = (
            self,
            PPOActorConfig(**EXPERIMENT, backend="fsdp:d1", ppo_n_minibatches=1),
            None,
        )
        masks = {"attention_mask": torch.ones_like(versions), "loss_mask": versions >= 0}
        names = ("advantages", "kl_rewards", "tot_rewards", "logprobs")
        PPOActor._ppo_update(
            actor,
            {
                **masks,
                **dict.fromkeys(names, zeros),
                "rewards": zeros[:, 0],
                "input_ids": versions,
                "versions": versions,
            },
        )


SmallEngine.__abstractmethods__ = frozenset()
