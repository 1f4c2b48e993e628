"""ROLL's own `RLVRPipeline.run` and `DPOPipeline.run` around workers that take time: loop.py PIPELINE STEPS

Loops, timers, clusters, workers' base class, their decorator and the batches between them are ROLL's. Prints
what ROLL logs, a JSON line each step.
"""

import json
import os
import sys
import time
from types import SimpleNamespace

import numpy as np
import ray
import torch
from roll.distributed.executor.cluster import Cluster
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.scheduler.resource_manager import ResourceManager
from roll.pipeline.dpo.dpo_pipeline import DPOPipeline
from roll.pipeline.rlvr import rlvr_pipeline
from roll.utils.metrics.metrics_manager import MetricsManager
from roll.utils.worker_state import WorkerState
from small_worker import SmallWorker

ROWS = 4


class Settings(SimpleNamespace):
    """What nobody has set is off."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Scheduler:
    """Gives a batch after a while, as the scheduler of rollouts does."""

    def get_batch(self, data, global_step, batch_size):
        time.sleep(0.08)
        made = torch.full((batch_size, 6), global_step + 1)
        batch = DataProto.from_dict(
            {
                "prompts": made,
                "responses": made,
                "attention_mask": torch.ones_like(made),
                "response_mask": torch.ones_like(made),
                "final_response_mask": torch.ones_like(made),
            },
            {"domain": np.array(["math"] * batch_size, dtype=object)},
        )
        batch.meta_info["metrics"] = {}
        return batch

    def pause_sampling(self):
        time.sleep(0.01)

    def get_scheduler_state(self):
        return {}

    def shutdown(self):
        return None


class Tracker:
    def log(self, values, step):
        times = {name: value for name, value in values.items() if "time/" in name}
        losses = [value for name, value in values.items() if "loss" in name]
        print(json.dumps({"step": step, "times": times, "loss": float(np.mean(losses))}), flush=True)


def prepared(pipeline, steps, **clusters):
    """A pipeline that has what its loop needs."""
    nothing = Settings(use_dynamic_batching_in_infer=False, use_dynamic_batching_in_train=False)
    nothing.training_args = SimpleNamespace(
        num_train_epochs=steps, per_device_train_batch_size=1, gradient_accumulation_steps=1
    )
    pipeline.pipeline_config = Settings(
        actor_train=nothing,
        critic_warmup=0,
        enable_old_logprobs_recompute=False,
        enable_reference=False,
        logging_steps=1000,
        max_steps=steps,
        reference_configs={},
        save_steps=1000,
        generate_opt_level=1,
    )
    pipeline.state, pipeline.tracker, pipeline.val_dataset = WorkerState(), Tracker(), None
    pipeline.do_checkpoint = lambda **_: None
    manager = ResourceManager(num_gpus_per_node=0, num_nodes=1)
    for name, ranks in clusters.items():
        config = Settings(name=name, world_size=ranks, system_envs={}, max_concurrency=1)
        config.strategy_args = SimpleNamespace(strategy_config={})
        cluster = Cluster(name, SmallWorker, manager, config)
        cluster.initialize(pipeline_config=None)
        setattr(pipeline, name, cluster)
    return pipeline


def dpo(steps):
    """Its `DataLoader` is a list of batches here."""
    pipeline = prepared(DPOPipeline.__new__(DPOPipeline), steps, actor_train=2, reference=1)
    pipeline.dataloader = [{"input_ids": torch.full((ROWS, 6), 1.0 + n)} for n in range(steps)]
    pipeline.run()


def rlvr(steps):
    """Rewards and the statistics of a batch need a real one."""
    kept = lambda batch, *_, **__: (batch, {})  # noqa: E731
    rlvr_pipeline.get_sample_level_mask = rlvr_pipeline.compute_token_reward = kept
    rlvr_pipeline.reward_postprocess = lambda batch, *_: (time.sleep(0.02), (batch, {}))[1]
    rlvr_pipeline.compute_advantage = lambda data, **_: data
    rlvr_pipeline.batch_balance = lambda *_, **__: {}
    MetricsManager.add_all_metrics = MetricsManager.add_domain_all_metrics = lambda *_, **__: None
    RLVRPipeline = rlvr_pipeline.RLVRPipeline
    pipeline = prepared(RLVRPipeline.__new__(RLVRPipeline), steps, actor_train=2, actor_infer=1)
    pipeline.rewards, pipeline.reward_model_cluster, pipeline.running = {}, None, {}
    pipeline.generate_schedulers = {"math": ray.remote(Scheduler).options(name="generate_scheduler").remote()}
    pipeline.domain_batch_size = {"math": ROWS}
    pipeline.tokenizer = SimpleNamespace(batch_decode=lambda *_, **__: ["text"])
    pipeline.kl_ctrl = pipeline.resource_manager = pipeline.use_ref_model = None
    pipeline.model_update = lambda global_step: (time.sleep(0.03), {})[1]
    pipeline.get_generation_config = dict
    pipeline.run()


if __name__ == "__main__":
    seen = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}  # Ray's own processes were started without
    ray.init(address="auto", namespace="roll", runtime_env=seen)
    {"dpo": dpo, "rlvr": rlvr}[sys.argv[1]](int(sys.argv[2]))
