"""OpenRLHF's own training loop around models that only take time: loop.py

`PPOTrainer.fit`, `train_step`, `SamplesGenerator.generate_samples` and `make_experience_batch` are
OpenRLHF's; what they ask of other actors is answered here, without a Ray. Packages that OpenRLHF imports and
that cannot be had without a GPU are empty, and so is vLLM, which takes a minute to import. The last line
says which functions the adapter has followed, and whether anything of it is in what Ray carries to the
trainer's process.
"""

import importlib.abc
import importlib.machinery
import sys
import time
import types
from types import SimpleNamespace

NEED_GPU = (
    "flash_attn",
    "deepspeed",
    "torchdata",
    "bitsandbytes",
    "loralib",
    "torchmetrics",
    "optree",
    "peft",
)
NEVER = float("inf")


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty package for each of some names."""

    def __init__(self, *names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)

        def missing(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__getattr__ = missing
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Empty("vllm"))
sys.meta_path.append(Empty(*NEED_GPU))  # asked last: what is installed is taken

import torch  # noqa: E402
from openrlhf.trainer import ppo_trainer  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator  # noqa: E402
from openrlhf.trainer.ray import launcher, ppo_actor  # noqa: E402
from ray import cloudpickle  # noqa: E402

TAKES_S = {"fit": 0.06, "broadcast_to_vllm": 0.03, "append": 0.0}


class Group:
    """A RayActorGroup whose answers are there at once."""

    def async_run_method(self, method_name, **_):
        time.sleep(TAKES_S[method_name])
        return [{"loss": 0.5}] if method_name == "fit" else []

    async_run_method_batch = async_run_method


class Prompts(list):
    """A data loader with a state."""

    def state_dict(self):
        return {}


class Generator(SamplesGenerator):
    """Its second batch is filtered away whole, as dynamic filtering can do."""

    batches = 0

    def _generate_vllm(self, dataloader_iter, num_prompts, **_):
        time.sleep(0.05)
        self.batches += 1
        over = not next(dataloader_iter)
        return ([] if self.batches == 2 else [sample() for _ in range(num_prompts)]), num_prompts, over


class Maker(RemoteExperienceMaker):
    """The steps of `make_experience_batch`, on samples that are experiences already."""

    def split_rollout_samples(self, rollout_samples):
        return rollout_samples

    def make_experience(self, samples_list):
        time.sleep(0.04)
        return samples_list

    def compute_advantages_and_returns(self, experiences):
        return experiences


def sample():
    one = torch.ones(1)
    return SimpleNamespace(
        sequences=torch.ones(1, 4), info={"reward": one}, response_length=one, truncated=one
    )


def options(**named):
    return SimpleNamespace(**named)


ARGS = options(
    rollout=options(batch_size=2, n_samples_per_prompt=1),
    vllm=options(enable_sleep=False),
    algo=options(
        dynamic_filtering_enable=False,
        kl=options(target=None, init_coef=0.1),
        advantage=options(estimator="group_norm"),
    ),
    train=options(dynamic_batch_enable=False, num_episodes=1),
    ds=options(enable_sleep=False),
    critic=options(freezing_steps=-1),
    logger=options(logging_steps=1, wandb=options(key=None), tensorboard_dir=None),
    eval=options(steps=NEVER),
    ckpt=options(save_steps=NEVER, load_enable=False, path="", best_metric_key=""),
)


def main():
    ppo_trainer.ray.get = lambda refs: refs
    strategy = options(args=ARGS)
    prompts, group = Prompts([1, 1, 1, 0]), Group()
    carried = cloudpickle.dumps(ppo_trainer.PPOTrainer.__ray_metadata__.modified_class)
    kind = cloudpickle.loads(carried)  # as Ray has it in the actor's process
    trainer = kind.__new__(kind)
    tokenizer = SimpleNamespace(decode=lambda tokens, **_: [str(tokens)])
    trainer.prompts_dataloader, trainer.eval_dataloader, trainer.generate_kwargs = prompts, None, {}
    trainer.samples_generator = Generator.__new__(Generator)
    vars(trainer.samples_generator).update(args=ARGS, prompts_dataloader=prompts, _sample_buffer=[])
    ppo_trainer.BasePPOTrainer.__init__(trainer, strategy, group, None, None, None, [], tokenizer)
    trainer.experience_maker = Maker.__new__(Maker)
    trainer.fit()
    wrapped = [launcher.BaseModelActor.execute_batch, ppo_actor.ActorPPOTrainer.ppo_train]
    print("followed", [hasattr(function, "__wrapped__") for function in wrapped], b"rlprof_ops." in carried)


if __name__ == "__main__":
    main()
