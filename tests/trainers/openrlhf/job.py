"""OpenRLHF's own command line, `openrlhf.cli.train_ppo_ray`, around models that only take time: job.py STEPS

The command line with its options, the trainer actor, groups of actors, the model actors with their forward
passes, replay buffers, training steps and broadcasts, the maker of experiences and the generator of samples
are OpenRLHF's. Two actors train a number on gloo. What DeepSpeed and vLLM do is answered here; packages that
need a GPU are empty, as `EMPTY_PACKAGES` names them.
"""

import contextlib
import os
import runpy
import sys
import time
from argparse import Namespace

import ray
import torch
from openrlhf import utils
from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ray import launcher, ppo_actor, vllm_engine
from openrlhf.utils.deepspeed import DeepspeedStrategy
from torch.distributed.device_mesh import init_device_mesh

PROMPTS, BATCH, TOKENS = 8, 2, 6
GENERATES_S, FORWARD_S, BACKWARD_S, UPDATES_S = 0.05, 0.03, 0.05, 0.02
OPTIONS = """
--actor.model_name_or_path small --actor.num_gpus_per_node 2 --ref.num_gpus_per_node 1
--vllm.num_engines 2 --vllm.sync_backend gloo --reward.remote_url none --data.prompt_dataset none
--algo.advantage.estimator reinforce
"""


class Small(torch.nn.Module):
    """One number as a model, with the methods of DeepSpeed's engine."""

    def __init__(self, *_, **__):
        super().__init__()
        self.number, self.calls = torch.nn.Parameter(torch.zeros(1)), 0

    @property
    def model(self):
        return Namespace(module=self)

    def forward(self, sequences, action_mask, attention_mask=None, return_output=False, **_):
        time.sleep(FORWARD_S)
        log_probs = self.number * sequences[:, 1:] * action_mask - 1.0
        return (log_probs, None) if return_output else log_probs

    def backward(self, loss):
        time.sleep(BACKWARD_S * (1 + torch.distributed.get_rank()))
        loss.backward()

    def step(self):
        """One update for all prompts, whose order then does not matter."""
        self.calls += 1
        if self.calls % accumulated(torch.distributed.get_world_size()):
            return
        torch.distributed.all_reduce(self.number.grad)
        self.number.data -= 0.1 * self.number.grad
        self.number.grad = None


def accumulated(ranks):
    return PROMPTS // BATCH // ranks


class Device(str):
    """The CPU, which formats as the number of a GPU."""

    def __format__(self, _):
        return "0"


class Rate:
    def get_last_lr(self):
        return [0.1]


class Sent:
    """Sends weights to the engines."""

    def broadcast(self, *_, **__):
        time.sleep(UPDATES_S)


class Strategy(DeepspeedStrategy):
    """Without CUDA and DeepSpeed."""

    def setup_distributed(self, timeout=None):
        torch.cuda.current_device = lambda: Device("cpu")
        torch.cuda.synchronize = torch.cuda.current_stream = lambda *_: None
        ppo_actor.deepspeed.zero = Namespace(GatheredParameters=lambda *_, **__: contextlib.nullcontext())
        ppo_actor.stateless_init_process_group = lambda *_: Sent()
        buffer = ppo_actor.NaiveReplayBuffer
        ppo_actor.NaiveReplayBuffer = lambda size, limit, _, *rest: buffer(size, limit, False, *rest)
        torch.distributed.init_process_group("gloo")
        self.world_size = torch.distributed.get_world_size()
        self.ds_device_mesh = init_device_mesh(
            "cpu", (self.world_size, 1, 1), mesh_dim_names=("dp", "sp", "tp")
        )
        self.accumulated_gradient = accumulated(self.world_size)

    def get_ds_train_config(self, *_, **__):
        return {}

    get_ds_eval_config = get_ds_train_config

    def prepare(self, what):
        return (what[0], None, Rate()) if isinstance(what, tuple) else what

    def save_model(self, *_, **__):
        return None


class Prompts(list):
    """A data loader with a state."""

    def state_dict(self):
        return {}


class Tokenizer:
    pad_token_id = 0

    def decode(self, tokens, **_):
        return [str(tokens.tolist())]


async def engine(self, *_, **__):
    self.made = 0


async def generate_responses(self, prompt, label, *_, **__):
    """One answer: the engine's time, and a reward that the prompt decides."""
    import asyncio

    await asyncio.sleep(GENERATES_S)
    number = int(prompt)
    return [
        {
            "prompt": prompt,
            "label": label,
            "observation_tokens": [1 + number % 7] * (2 + TOKENS),
            "action_ranges": [(2, 2 + TOKENS)],
            "rollout_log_probs": None,
            "reward": float(number % 3),
            "scores": float(number % 3),
        }
    ]


async def update_weight(self, name, dtype, shape, empty_cache=False):
    time.sleep(UPDATES_S)


async def init_process_group(
    self, master_address, master_port, rank_offset, world_size, group_name, backend, use_ray
):
    return None


def get_num_unfinished_requests(self):
    return 0


def main(steps):
    def datasets(*_):
        batches = [("some", [str(n)], [""], [None]) for n in range(steps * PROMPTS)]
        return Prompts(batches), None, steps

    def tokenizer(*_, **__):
        from openrlhf.trainer.ppo_utils import samples_generator

        samples_generator.SamplingParams = dict
        return Tokenizer()

    # Ray carries an actor's class by value, with what it finds in its module at that time.
    ppo_trainer.prepare_datasets = datasets
    ppo_trainer.get_tokenizer = ppo_actor.get_tokenizer = tokenizer
    ppo_actor.Actor = launcher.Actor = Small
    served = vllm_engine.RolloutRayActor.__ray_metadata__.modified_class
    served.__init__ = engine
    for function in (generate_responses, update_weight, init_process_group, get_num_unfinished_requests):
        setattr(served, function.__name__, function)
    utils.get_strategy = lambda args: Strategy(
        args=args, train_batch_size=PROMPTS, micro_train_batch_size=BATCH
    )

    handed_on = {name: os.environ[name] for name in ("PYTHONPATH", "EMPTY_PACKAGES")}
    ray.init(logging_level="error", runtime_env={"env_vars": handed_on})
    sizes = {"batch_size": PROMPTS, "micro_batch_size": BATCH}
    sized = [f"--{part}.{name}={size}" for part in ("rollout", "train") for name, size in sizes.items()]
    sys.argv = ["train_ppo_ray", *OPTIONS.split(), *sized]
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    time.sleep(2)  # what actors print comes later
    print("trained", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
