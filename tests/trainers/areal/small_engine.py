"""What AReaL's workers hold in the stead of a model: a matrix on gloo, whose work only takes time."""

import time

import torch.distributed as dist
from areal.api import TrainEngine
from areal.utils import perf_tracer
from areal.utils.perf_tracer import trace_perf


class SmallEngine(TrainEngine):
    """Answers what AReaL's controllers ask of an engine."""

    initialized = False
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

    set_version = step_lr_scheduler = clear_batches = update_weights = nothing

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


SmallEngine.__abstractmethods__ = frozenset()
