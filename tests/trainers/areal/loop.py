"""AReaL's own `PPOTrainer.train`, around engines that only take time: loop.py STEPS SCHEDULER

Loop, timers, controllers, scheduler (`local` or `ray`), its workers and the thread of asynchronous rollouts
are AReaL's. Rollouts are timed beside the steps. Prints what AReaL logs, a JSON line each step.
"""

import asyncio
import json
import os
import sys
import time
from types import SimpleNamespace

import torch
from areal.api import FinetuneSpec
from areal.api.cli_args import PerfTracerConfig, SchedulingSpec, SchedulingStrategy, TrainEngineConfig
from areal.infra import LocalScheduler, RayScheduler
from areal.infra.async_task_runner import AsyncTaskRunner
from areal.trainer.ppo.actor import PPOActorController
from areal.trainer.rl_trainer import PPOTrainer
from areal.utils import perf_tracer, stats_tracker
from areal.workflow.rlvr import RLVRWorkflow
from small_engine import SmallEngine

ROWS = 4
EXPERIMENT = {"experiment_name": "small", "trial_name": "one"}


class Rollouts:
    """A rollout controller over AReaL's runner of coroutines: they run on while the trainer trains."""

    def __init__(self):
        self.runner = AsyncTaskRunner(max_queue_size=64, poll_wait_time=0.01, poll_sleep_time=0.01)
        self.runner.initialize()
        self.submitted, self.taken, self.done = 0, 0, {}
        self.version, self.made = 0, []

    def submit(self):
        for _ in range(ROWS):
            self.submitted += 1
            self.runner.submit(self.one, self.submitted, task_id=self.submitted)

    async def one(self, number):
        tracker, first = stats_tracker.get("rollout"), self.version
        with tracker.record_timing("episode"), tracker.record_timing("update_weights_of_an_episode"):
            await asyncio.sleep(0.06)
        versions = torch.tensor([[-1, first, first, self.version]])
        return number, {"input_ids": torch.full((1, 4), number), "versions": versions}

    def prepare_batch(self, **_):
        self.submit()
        if self.submitted == ROWS:
            self.submit()  # one batch ahead
        wanted = range(self.taken + 1, self.taken + ROWS + 1)
        while not self.done.keys() >= set(wanted):
            self.done |= dict(self.runner.wait(1))
        self.taken += ROWS
        self.made = [[*map(int, self.done[number]["versions"][0, [1, 3]])] for number in wanted]
        return [self.done[number] for number in wanted]

    def export_stats(self):
        return {}

    def nothing(self, *_, **__):
        return None

    def set_version(self, version):
        self.version = version

    pause = resume = config_perf_tracer = save_perf_tracer = pause_generation = nothing
    destroy = continue_generation = nothing

    def onload(self):
        time.sleep(0.02)

    offload = onload


class Actor(PPOActorController):
    def get_device_stats(self):
        return SimpleNamespace(log=lambda *_: None)

    def update_weights(self, meta):
        time.sleep(0.04)


class Trainer(PPOTrainer):
    """AReaL's trainer with what its loop needs, and models that only take time."""

    critic = teacher = eval_rollout = recover_info = valid_dataloader = data_controller = None
    _should_offload_rollout = True
    _should_offload_actor = _should_offload_critic = _should_offload_ref = _should_offload_teacher = False

    def __init__(self, steps, scheduler):
        tracer = PerfTracerConfig(**EXPERIMENT, fileroot=os.getcwd(), enabled=True)
        self.config = SimpleNamespace(
            total_train_epochs=1,
            total_train_steps=None,
            dynamic_bs=False,
            gconfig=SimpleNamespace(n_samples=1),
            actor=SimpleNamespace(should_compute_prox_logp=lambda: True),
            rollout=SimpleNamespace(agent=None),
            memory_profiler=None,
            perf_tracer=tracer,
        )
        self.train_dataloader = range(steps)
        self.saver = SimpleNamespace(maybe_wait_for_staging=lambda: None)
        self.stats_logger = SimpleNamespace(commit=self.commit)
        self.weight_update_meta = SimpleNamespace(with_version=lambda version: version)
        self.rollout = Rollouts()
        self.actor, self.ref = (self.group(role, n, scheduler) for role, n in (("actor", 2), ("ref", 1)))
        self.actor.rollout = self.rollout
        self.actor.create_process_group()
        self._config_perf_tracer()

    def group(self, role, ranks, scheduler):
        spec = SchedulingSpec(cpu=1, mem=1, cmd="python -m areal.infra.rpc.rpc_server")
        config = TrainEngineConfig(
            backend=f"fsdp:d{ranks}",
            scheduling_spec=(spec,),
            scheduling_strategy=SchedulingStrategy(),
            **EXPERIMENT,
        )
        made = Actor(SmallEngine, config, scheduler)
        made.initialize(role=role, ft_spec=FinetuneSpec(1, ROWS, ROWS))
        return made

    def takes(self, *_, **__):
        time.sleep(0.01)

    _save_hf = _save_recover_checkpoint = _evaluate = takes

    def commit(self, epoch, step, global_step, stats):
        timed = {key[9:]: took for key, took in stats.items() if key.startswith("timeperf/")}
        timed = {key: [took, timed[f"{key}__count"]] for key, took in timed.items() if "__count" not in key}
        print(
            "\n"
            + json.dumps(
                {"step": global_step, "timings": timed, "loss": stats["loss"], "made": self.rollout.made}
            ),
            flush=True,
        )


def main(steps, which):
    if which == "ray":
        import ray

        handed_on = {name: os.environ[name] for name in ("PYTHONPATH", "EMPTY_PACKAGES")}
        ray.init(logging_level="error", runtime_env={"env_vars": handed_on})
        config = SimpleNamespace(enable_offload=False, cluster=SimpleNamespace(n_gpus_per_node=1))
        scheduler = RayScheduler(exp_config=config, startup_timeout=300)
    else:
        records = os.path.join(os.getcwd(), "records")
        os.makedirs(records, exist_ok=True)
        scheduler = LocalScheduler(
            [0], startup_timeout=300, **EXPERIMENT, fileroot=os.getcwd(), nfs_record_root=records
        )
    try:
        Trainer(steps, scheduler).train(workflow=RLVRWorkflow)
        time.sleep(float(os.environ["LINGER_S"]))  # nsys writes reports of the step before the last
    finally:
        scheduler.delete_workers()
    perf_tracer.save(force=True)
    print("trained", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
