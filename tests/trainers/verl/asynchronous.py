"""verl's own asynchronous trainers at their own loops: what needs GPUs, models and queues is left out of an
instance; steps, mini-steps, versions and timers are verl's. Prints one JSON line: the steps by verl's clock.

    python asynchronous.py one_step_off|fully_async
"""

import asyncio
import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch

WHICH = sys.argv[1]
if WHICH == "one_step_off":
    from verl.experimental.one_step_off_policy import ray_trainer as module

    cls = module.OneStepOffRayTrainer
else:
    from verl.experimental.fully_async_policy import fully_async_trainer as module

    cls = module.FullyAsyncTrainer
    cls = getattr(getattr(cls, "__ray_metadata__", None), "modified_class", cls)


class Trainer(cls):
    """`__init__` calls nobody's."""

    def __init__(self):
        self.global_steps = 1
        if WHICH == "fully_async":
            self.current_param_version, self.local_trigger_step, self.trigger_parameter_sync_step = 0, 1, 2
        self.epoch, self.is_last_step, self.dynamic_schedule_enabled = 0, False, False
        self.dynamic_resource_controller = None
        self.config = SimpleNamespace(global_profiler=SimpleNamespace(steps=None))
        self.times = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return None


def phase(name, seconds=0.01):
    def run(self, *given, **_):
        if name:
            with module.marked_timer(name, self.timing_raw):
                time.sleep(seconds)
        return given[0] if given else None

    return run


for part, name in {
    "_fit_prepare_step": "", "_fit_start_profile": "", "_fit_stop_profile": "", "_fit_validate": "",
    "_fit_save_checkpoint": "", "_fit_collect_metrics": "", "_fit_experimental": "", "_fit_dump_data": "",
    "_fit_compute_reward": "reward", "_fit_compute_log_prob": "old_log_prob", "_fit_compute_critic": "",
    "_fit_compute_ref_log_prob": "ref", "_fit_compute_advantage": "adv", "_fit_update_critic": "",
    "_record_train_resource_utilization": "",
}.items():  # fmt: skip
    setattr(Trainer, part, phase(name))


def update_actor(self, batch):
    with module.marked_timer("update_actor", self.timing_raw):
        time.sleep(0.05)
    return batch


def ends(self, *_):
    self.times.append([self.current_param_version, self.timing_raw["step"]])
    self.global_steps += 1


Trainer._fit_update_actor = update_actor
Trainer._fit_postprocess_step = ends


async def later(trainer):
    """What `_async_gen_next_batch` is to the trainer, with its timer: it runs while the step goes on."""
    with module.marked_timer("generate_async", {}):
        await asyncio.sleep(0.03)


async def generate(self, future, *_):
    if future is not None:
        with module.marked_timer("gen", self.timing_raw):
            await future
    return None, asyncio.create_task(later(self))


def sample(first, last):
    """A rollout sample as verl's rollouter puts it into the queue, made by weights of these versions."""
    from verl.experimental.fully_async_policy.detach_utils import RolloutSample

    batch = module.DataProto.from_dict(
        {"response_mask": torch.ones(1, 2)},
        non_tensors={"min_global_steps": np.array([first]), "max_global_steps": np.array([last])},
        meta_info={"metrics": [{"generate_sequences": 0.1, "tool_calls": 0.0}]},
    )
    return RolloutSample(full_batch=batch, sample_id="0", epoch=0, rollout_status={})


async def collect(self, batch):
    with module.marked_timer("gen", self.timing_raw):
        version = self.current_param_version
        samples = [sample(max(0, version - behind), version) for behind in (0, 1)]
        samples.append(sample(max(0, version - 2), max(0, version - 2)))
        made = module.assemble_batch_from_rollout_samples(samples, None, self.config)
        metrics = {}
        self.stale_trajectory_processed = 0
        cls._collect_metrics_from_samples(self, made, metrics)
        print("stale:", version, metrics["fully_async/count/stale_trajectory_processed"])
        await asyncio.sleep(0.01)


async def nothing(self, *_, **__):
    return None


async def sync(self):
    if self.local_trigger_step == 1:
        with module.marked_timer("timing_s/param_sync", self.timing_raw):
            await asyncio.sleep(0.01)


async def main():
    trainer = Trainer()
    future = None
    for _ in range(6):
        if WHICH == "one_step_off":
            future = await trainer.fit_step(future, None)
        else:
            await trainer.fit_step()
    if future is not None:
        future.cancel()
    print(json.dumps(trainer.times))


if WHICH == "one_step_off":
    Trainer._fit_generate = generate
else:
    Trainer._fit_generate, Trainer._fit_update_weights, Trainer._fit_validate = collect, sync, nothing
asyncio.run(main())
