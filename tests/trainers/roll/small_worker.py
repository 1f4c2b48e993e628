"""What ROLL's clusters hold in the stead of a model: rows of numbers, whose work only takes time."""

import time

import torch
from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto


class SmallWorker(Worker):
    """Answers what ROLL's pipelines ask of a worker."""

    def __init__(self, worker_config):
        worker_config.offload_nccl = False
        super().__init__(worker_config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config):
        self.seen = 0.0

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST, trace=True)
    def train_step(self, data):
        time.sleep(0.04 * (1 + self.rank))
        name = "responses" if "responses" in data.batch else "input_ids"
        self.seen += float(data.batch[name].float().mean())
        return DataProto(meta_info={"metrics": {"actor_train/loss": self.seen}})

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST, trace=True)
    def compute_log_probs(self, data):
        time.sleep(0.03)
        some = torch.zeros(len(data), 5)
        return DataProto.from_dict({"log_probs": some, "entropy": some}, meta_info={"metrics": {}})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_states(self, *_, **__):
        return None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def offload_states(self, *_, **__):
        return None
