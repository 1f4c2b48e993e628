"""slime's own `train.py` or `train_async.py`, around models that only take time: loop.py STEPS WHICH

Loop, placement of models, group of actors, the training actor with its timers, and what it logs of a step are
slime's. Two actors train a matrix on gloo. What Megatron and SGLang do, and packages that need a GPU, is
answered here. Run in an environment that has Ray and torch; `EMPTY_PACKAGES` names what is empty.
"""

import importlib
import os
import sys
import time
from argparse import Namespace

import ray
import torch
from ray.util.placement_group import placement_group
from slime.backends.megatron_utils import actor as theirs
from slime.backends.sglang_utils.sglang_engine import SGLangEngine
from slime.observability import train_metric_utils
from slime.observability.timer import Timer
from slime.ray import placement_group as models
from slime.ray import rollout, train_actor
from slime.ray.actor_group import RayTrainGroup


class Args(Namespace):
    """What is not set is None."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def nothing(*_, **__):
    return None


def takes(seconds, answer=None):
    def call(*_, **__):
        time.sleep(seconds)
        return answer

    return call


class Anything:
    """In the stead of a profiler, a keeper of weights, or who sends them."""

    backup_tags = ("actor",)
    backup = restore = step = on_init_end = connect_rollout_engines = nothing
    update_weights = takes(0.06)
    pop_metrics = dict

    def __init__(self, *_, **__):
        pass

    create = classmethod(lambda cls, *_, **__: cls())


def init(self, args, role, *_, **__):
    self.args, self.role = args, role
    torch.distributed.init_process_group("gloo")
    args.rank, args.world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()


def train(rollout_id, *_):
    time.sleep(0.1 * (1 + torch.distributed.get_rank()))
    torch.manual_seed(rollout_id)
    found = torch.randn(8, 8).sum()
    torch.distributed.all_reduce(found)
    if torch.distributed.get_rank() == 0:
        print(f"loss {rollout_id}: {found.item()!r}", flush=True)


class Actor(theirs.MegatronTrainRayActor):
    hf_config = None

    def __init__(self, *arguments):
        train_actor.get_local_gpu_id = lambda: 0
        train_actor.TrainRayActor.init = init
        train_actor.clear_memory = train_actor.print_memory = nothing
        mpu = Namespace(
            get_virtual_pipeline_model_parallel_world_size=nothing,
            get_data_parallel_world_size=takes(0, 2),
            get_context_parallel_world_size=takes(0, 1),
            get_tensor_model_parallel_rank=torch.distributed.get_rank,
            get_data_parallel_rank=takes(0, 0),
            is_pipeline_last_stage=takes(0, True),
        )
        theirs.mpu = sys.modules["megatron.core"].mpu = mpu
        for name in ("monkey_patch_torch_dist", "register_default_process_group", "init", "get_gloo_group"):
            setattr(theirs, name, nothing)
        for name in ("clear_memory", "print_memory", "get_data_iterator", "compute_advantages_and_returns"):
            setattr(theirs, name, nothing)
        for name in ("TrainProfiler", "TensorBackuper", "UpdateWeightFromDistributed"):
            setattr(theirs, name, Anything)
        theirs.is_megatron_main_rank = takes(0, False)
        theirs.initialize_model_and_optimizer = takes(0, ([], None, None, 0))
        theirs.forward_only, theirs.train = takes(0.03, {}), train
        theirs.train_data_utils = Namespace(save_debug_train_data=nothing)
        train_metric_utils.log_rollout_data = train_metric_utils.compute_rollout_step = nothing
        train_metric_utils.calculate_fwd_flops = takes(0, 1.0)
        train_metric_utils.logging_utils = Namespace(log=nothing)
        Timer().seq_lens = [1]
        super().__init__(*arguments)

    def _get_rollout_data(self, reference):
        time.sleep(0.02)
        return {"num_microbatches": [1], "global_batch_sizes": [1]}


class Engine(SGLangEngine):
    def __init__(self, rank):
        pass

    def generate(self):
        time.sleep(0.2)


class Manager(rollout.RolloutManager.__ray_metadata__.modified_class):
    def __init__(self, args, pg):
        self.engines = [ray.remote(Engine).options(num_cpus=0).remote(rank) for rank in range(2)]
        self.lock = rollout.Lock.options(num_cpus=0).remote()

    def generate(self, rollout_id):
        ray.get([engine.generate.remote() for engine in self.engines])

    def get_updatable_engines_and_lock(self):
        return self.engines, self.lock, 0, [], [], []

    def dispose(self):
        pass


def placed(args):
    group = placement_group([{"CPU": 1}] * 2)
    ray.get(group.ready())
    return {"actor": (group, [0, 1], [0, 1]), "rollout": (group, [0, 1], [0, 1]), "critic": None}


def main(steps, which):
    handed_on = {name: os.environ[name] for name in ("PYTHONPATH", "EMPTY_PACKAGES")}
    ray.init(logging_level="error", runtime_env={"env_vars": handed_on})
    loop = importlib.import_module(which)
    loop.create_placement_groups, loop.init_tracking, loop.finish_tracking = placed, nothing, nothing
    rollout.RolloutManager = ray.remote(Manager)
    models.RayTrainGroup = lambda **named: RayTrainGroup(
        **named | {"num_gpus_per_actor": 0, "actor_cls": Actor}
    )
    loop.train(
        Args(
            start_rollout_id=0,
            actor_num_nodes=1, actor_num_gpus_per_node=2, num_gpus_per_node=0, num_rollout=steps, kl_coef=0,
            update_weights_interval=1, update_weight_mode="full", update_weight_transport="nccl",
            train_env_vars={}, distributed_timeout_minutes=10, train_backend="megatron",
            model_name="matrix", vocab_size=1,
            compute_advantages_and_returns=True, rollout_data_transport="object-store",
        )
    )  # fmt: skip
    time.sleep(2)  # what actors print comes later
    print("trained", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
