"""SkyRL's own trainers at their own loops, around models and engines that only take time: loop.py STEPS WHICH

Loop, timers, buffers, generation workers and configuration are SkyRL's. `sync`, in a Ray task as SkyRL's
entrypoint has it, trains a matrix in SkyRL's own group of actors: two policy workers on gloo, and an engine.
`one_step_off` and `fully_async` need no Ray; a timer of their generator runs beside the steps. Prints what
SkyRL logs, a JSON line each time.
"""

import asyncio
import contextlib
import json
import os
import sys
import time

import ray
import torch
from skyrl.backends.skyrl_train.distributed.dispatch import MeshRank
from skyrl.backends.skyrl_train.inference_servers.vllm_server_actor import VLLMServerActor
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase
from skyrl.backends.skyrl_train.workers.worker import PPORayActorGroup
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import Timer

ROWS = 2


class Strategy:
    """What a worker asks of FSDP's, on gloo."""

    def all_reduce(self, values, op="mean", group=None):
        found = torch.tensor(list(values.values()), dtype=torch.float64)
        torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.SUM)
        return dict(zip(values, (found / torch.distributed.get_world_size()).tolist(), strict=True))

    def optimizer_step(self, optimizer, model, scheduler, name=""):
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


class Policy(FSDPPolicyWorkerBase):
    def init_worker_process_group(self):
        torch.distributed.init_process_group("gloo")
        mesh = torch.distributed.device_mesh
        self.device_mesh = mesh.init_device_mesh("cpu", (self._world_size,), mesh_dim_names=("dp",))
        size = self._world_size
        self.mesh_rank = MeshRank(self._rank, 0, 0, 0, world_size=size, dp_size=size, pp_size=1)

    def init_model(self):
        torch.manual_seed(self._rank)
        self.model, self.strategy = torch.nn.Linear(16, 16), Strategy()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def _forward_backward_micro(self, experience, weight, **_):
        time.sleep(0.1 * (1 + self._rank))
        loss = self.model(experience.sequences.float()).square().mean()
        loss.backward()
        return {"loss": loss.item()}

    async def broadcast_to_inference_engines(self, *_):
        await asyncio.sleep(0.05)


class Engine(VLLMServerActor):
    def __init__(self):
        pass

    async def generate(self):
        await asyncio.sleep(0.2)


class Prompts(list):
    """A data loader with a state."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Tracker:
    """Prints what is logged."""

    def __init__(self):
        self.losses = {}

    def log(self, data, step, commit=True):
        timings = {name[7:]: value for name, value in data.items() if name.startswith("timing/")}
        if timings:
            print(
                "\n" + json.dumps({"step": step, "timings": timings, "loss": self.losses.get(step)}),
                flush=True,
            )

    def finish(self):
        pass


class Client:
    """What the trainer asks of engines when it sends weights."""

    async def pause_generation(self):
        pass

    resume_generation = pause_generation


class Small:
    """Answers in the stead of models, over a trainer of SkyRL's."""

    attempts = 0

    def _build_train_dataloader_and_compute_training_steps(self):
        rows = [{"prompt": [], "env_class": None, "env_extras": {}, "uid": str(n)} for n in range(self.total)]
        self.train_dataloader = Prompts([row] for row in rows)
        self.num_steps_per_epoch = self.total_training_steps = self.total

    def init_weight_sync_state(self):
        self.dispatch = self

    async def save_weights_for_sampler(self):
        await asyncio.sleep(0.02)

    def __getattr__(self, name):  # of `dispatch`
        if name in ("finalize_pending_saves", "empty_cache"):
            return lambda *_: None
        raise AttributeError(name)

    def _remove_tail_data(self, prompts):
        return prompts

    async def generate(self, prompts, **_):
        await asyncio.sleep(0.05)
        return {"response_ids": [[1]], "rewards": [0.0], "loss_masks": [[1]]}

    def postprocess_generator_output(self, output, uids):
        return output, uids

    def handle_dynamic_sampling(self, output, uids):
        Small.attempts += 1
        return output, uids, Small.attempts == 2  # the second step's first attempt fills too little

    def convert_to_training_input(self, output, uids):
        batch = TrainingInputBatch({"sequences": torch.ones(ROWS, 16), "rewards": torch.ones(ROWS)})
        batch.metadata = {"uids": uids, "response_length": 1}
        return batch

    def convert_generation_group_mini_batch_to_training_input(self, groups, dropped):
        behind = [self.global_step - group.global_step_when_scheduled for group in groups]
        print("behind:", self.global_step, *behind, flush=True)
        with contextlib.suppress(Exception):  # SkyRL's own, which wants answers of a model
            super().convert_generation_group_mini_batch_to_training_input(groups, dropped)
        with Timer("of_a_thread", self.all_timings):
            return self.convert_to_training_input(groups[0].generator_output, [groups[0].uid])

    def fwd_logprobs_values_reward(self, batch):
        time.sleep(0.03)
        return batch

    def compute_advantages_and_returns(self, batch):
        return batch

    def _execute_training_step(self, model, batch):
        time.sleep(0.1)
        return {"loss": 0.0}


class Synchronous(Small, RayPPOTrainer):
    def build_models(self):
        cfg = self.cfg.trainer
        self.policy_model = PPORayActorGroup(cfg, 2, 1, ray.remote(Policy), num_gpus_per_actor=0)
        ray.get(self.policy_model.async_init_model())
        self.engine = ray.remote(Engine).options(num_cpus=0).remote()

    def all_run(self, function, *arguments):
        return ray.get(self.policy_model.async_run_ray_method("pass_through", function, *arguments))

    async def generate(self, prompts, **_):
        await self.engine.generate.remote()
        return {"response_ids": [[1]], "rewards": [0.0]}

    def _execute_training_step(self, model, batch):
        found = self.all_run("forward_backward", batch)
        self.all_run("optim_step")
        self.tracker.losses[self.global_step] = found[0].metrics["loss"]
        return found[0].metrics

    async def save_weights_for_sampler(self):
        await asyncio.gather(
            *self.policy_model.async_run_ray_method("pass_through", "broadcast_to_inference_engines")
        )


class Generator:
    """Generates for a later step; its timer spans whatever the trainer does meanwhile."""

    async def generate(self, prompts, disable_tqdm=True):
        async with Timer("generate_for_later"):
            with Timer("inside_of_it"):
                await asyncio.sleep(0.07)
        return {"response_ids": [[1]], "rewards": [0.0], "loss_masks": [[1]]}


def trainer_of(which, steps):
    cfg = SkyRLTrainConfig()
    cfg.trainer.epochs, cfg.trainer.max_training_steps = 1, steps
    cfg.trainer.eval_interval = cfg.trainer.ckpt_interval = cfg.trainer.hf_save_interval = 0
    cfg.trainer.print_example_interval, cfg.trainer.resume_mode = 0, "none"
    cfg.trainer.enable_ray_gpu_monitor = cfg.generator.inference_engine.enable_ray_prometheus_stats = False
    cfg.trainer.placement.colocate_all, cfg.trainer.algorithm.temperature = False, 1.0
    Small.total = steps + 2
    cls = Synchronous
    if which == "sync":
        cfg.trainer.algorithm.dynamic_sampling.type = "filter"
    elif which == "one_step_off":
        sys.path.insert(0, os.path.join(os.environ["SKYRL"], "examples", "train", "async"))
        from async_trainer import AsyncRayPPOTrainer as base

        cls = type("OneStepOff", (Small, base), {})
        Small.total = steps
    else:
        from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer as base

        cls = type("FullyAsync", (Small, base), {})
        cfg.trainer.fully_async.enabled, cfg.generator.batched = True, False
        cfg.trainer.train_batch_size = cfg.trainer.policy_mini_batch_size = 1
        (
            cfg.trainer.fully_async.num_parallel_generation_workers,
            cfg.trainer.fully_async.max_staleness_steps,
        ) = 2, 2
        cfg.trainer.algorithm.policy_loss_type = "rollout_is"
    tokenizer = type("Tokenizer", (), {"decode": lambda self, tokens: ""})()
    return cls(cfg, Tracker(), tokenizer, [None], Client(), Generator())


@ray.remote(num_cpus=1)
def skyrl_entrypoint(steps):
    run(trainer_of("sync", steps))


def run(trainer):
    if isinstance(trainer, Synchronous):
        trainer.build_models()
    asyncio.run(trainer.train())


if __name__ == "__main__":
    steps, which = int(sys.argv[1]), (*sys.argv[2:], "sync")[0]
    if which == "sync":
        handed_on = {name: os.environ[name] for name in ("PYTHONPATH", "EMPTY_PACKAGES")}
        ray.init(logging_level="error", runtime_env={"env_vars": handed_on})
        ray.get(skyrl_entrypoint.remote(steps))
    else:
        run(trainer_of(which, steps))
    print("trained", flush=True)
