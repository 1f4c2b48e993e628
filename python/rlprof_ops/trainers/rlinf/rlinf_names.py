"""RLinf's worker groups, fields and presets: what rendering and reading `cluster.profiling` both need."""

from __future__ import annotations

from typing import Any

from rlprof_ops import backends
from rlprof_ops.trainers.dialects import WorkerKind
from rlprof_ops.trainers.hydra import Interpolation

# Channels are groups of their own: `ActorGroup` never implies the channel worker `Actor` (its document, "How
# To Override Worker Groups"; Reward and RewardGroup exist in code only).
WORKERS = (
    WorkerKind("ActorGroup", ("policy_worker", "actor"), ("advantage", "logprob", "train", "weight_sync")),
    WorkerKind("RolloutGroup", ("generation_worker", "rollout"), ("generation", "weight_sync")),
    WorkerKind("EnvGroup", ("env_worker", "env"), ("generation",)),
    WorkerKind("RewardGroup", ("reward_worker", "reward"), ("reward",)),
    WorkerKind("InferenceGroup", ("ref_worker", "inference"), ("logprob",)),
    WorkerKind("CriticGroup", ("critic_worker", "critic"), ("train",)),
    WorkerKind("AgentLoopGroup", ("agentloop",), ()),
    WorkerKind("RewardActorGroup", ("reward_actor",), ("train",)),
    WorkerKind("RolloutJudgeGroup", ("rollout_judge",), ("generation",)),
    WorkerKind("SubWorkerRolloutGroup", ("rollout_fixed_worker",), ("generation",)),
    WorkerKind("SGLangServerGroup", (), ("generation",)),
    WorkerKind("SGLangRouterGroup", (), ()),
    WorkerKind("Actor", ("actor_channel",), (), "a channel: no GPU work, and no window opens in it"),
    WorkerKind("Rollout", ("rollout_channel",), (), "a channel: no GPU work, and no window opens in it"),
    WorkerKind("Env", ("env_channel",), (), "a channel: no GPU work, and no window opens in it"),
    WorkerKind("Reward", ("reward_channel",), (), "a channel: no GPU work, and no window opens in it"),
)
STEPPED = ("ActorGroup", "RolloutGroup", "EnvGroup")  # the groups whose windows the embodied runners open
# Worker.timer of the workers, and the runner's own timer.
PHASES = {
    "generation": (
        "rollout/generate",
        "rollout/generate_epoch",
        "rollout/predict",
        "generate_rollouts",
        "env/interact",
        "env/interact_once",
        "env/step",
        "env/bootstrap_step",
    ),
    "advantage": ("actor/compute_adv", "cal_adv_and_returns"),
    "train": ("actor/run_training", "run_training", "actor_training"),
    "weight_sync": (
        "actor/sync_model_to_rollout",
        "rollout/request_weight_sync",
        "rollout/poll_weight_sync",
        "sync_weights",
        "update_rollout_weights",
    ),
}
COMMON_FIELDS = ("backend", "enabled", "worker_groups", "steps", "output_dir")
# RLinf hands them on to Ray, whose words they are; those of nsys are its own.
FIELDS = {
    each.name: (*COMMON_FIELDS, *(each.ray_words.values() or ("options", "flags")))
    for each in backends.every()
    if each.ray_key
}
# examples/embodiment/config/profile/default.yaml.
PRESETS: dict[str, dict[str, Any]] = {
    "profile/default": {
        "backend": "nsight",
        "enabled": True,
        "worker_groups": ["ActorGroup", "RolloutGroup", "EnvGroup"],
        "options": {
            "t": "cuda,cudnn,cublas,nvtx,osrt",
            "sample": "process-tree",
            "cpuctxsw": "process-tree",
            "cudabacktrace": "all",
            "osrt-threshold": 1000,
        },
        "flags": [],
    }
}
# Groups that RLinf's document lists in its preset too, and the file has not.
DOCUMENTED_GROUPS = ("Actor", "Rollout", "Env")
# `megatron.profiler` with the values of its document; RLinf wants every one of them written.
TORCH_DEFAULTS: dict[str, Any] = {
    "output_dir": Interpolation("${runner.output_dir}/${runner.experiment_name}/profiler"),
    "activities": ["cpu", "cuda"],
    "record_shapes": False,
    "profile_memory": False,
    "with_stack": False,
    "with_flops": False,
    "with_modules": True,
    "export_tensorboard": True,
    "export_chrome_trace": False,
    "chrome_filename_prefix": "chrome_trace",
    "schedule_warmup": 2,
    "schedule_active": 1,
    "schedule_repeat": 1,
}


def canonical_group(name: str) -> str:
    """RLinf matches groups whatever their case."""
    return next((w.name for w in WORKERS if w.name.lower() == name.lower()), name)
