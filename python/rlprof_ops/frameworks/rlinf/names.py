"""RLinf's worker groups, fields and presets: what rendering and reading `cluster.profiling` both need."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlprof_ops.frameworks.base import Worker
from rlprof_ops.frameworks.hydra import dig

# Channels are groups of their own: `ActorGroup` never implies the channel worker `Actor` (its document, "How
# To Override Worker Groups"; Reward and RewardGroup exist in code only).
WORKERS = (
    Worker("ActorGroup", ("policy_worker", "actor"), ("advantage", "logprob", "train", "weight_sync")),
    Worker("RolloutGroup", ("generation_worker", "rollout"), ("generation", "weight_sync")),
    Worker("EnvGroup", ("env_worker", "env"), ("generation",)),
    Worker("RewardGroup", ("reward_worker", "reward"), ("reward",)),
    Worker("Actor", ("actor_channel",), (), "a channel: no GPU work, and no window opens in it"),
    Worker("Rollout", ("rollout_channel",), (), "a channel: no GPU work, and no window opens in it"),
    Worker("Env", ("env_channel",), (), "a channel: no GPU work, and no window opens in it"),
    Worker("Reward", ("reward_channel",), (), "a channel: no GPU work, and no window opens in it"),
)
CHANNELS = ("Actor", "Rollout", "Env", "Reward")
STEPPED = ("ActorGroup", "RolloutGroup", "EnvGroup")  # the groups whose windows the embodied runners open
PHASES = {
    "generation": (
        "rollout/generate",
        "rollout/generate_epoch",
        "rollout/predict",
        "env/interact",
        "env/interact_once",
        "env/step",
        "env/bootstrap_step",
    ),
    "advantage": ("actor/compute_adv",),
    "train": ("actor/run_training", "run_training"),
    "weight_sync": ("actor/sync_model_to_rollout", "rollout/request_weight_sync", "rollout/poll_weight_sync"),
}
COMMON_FIELDS = ("backend", "enabled", "worker_groups", "steps", "output_dir")
FIELDS = {"nsight": (*COMMON_FIELDS, "options", "flags"), "rocprof_sys": (*COMMON_FIELDS, "args", "env")}
# examples/embodiment/config/profile/default.yaml. Its document lists Actor, Rollout and Env too; the file
# does not.
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
# `megatron.profiler` with the values of its document; RLinf wants every one of them written.
TORCH_DEFAULTS: dict[str, Any] = {
    "output_dir": "${runner.output_dir}/${runner.experiment_name}/profiler",
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


def world(config: Mapping[str, Any]) -> dict[str, int]:
    """Ranks per group of an RLinf configuration: the accelerators that `cluster.component_placement` gives
    each.
    """
    groups = {"actor": "ActorGroup", "rollout": "RolloutGroup", "env": "EnvGroup", "reward": "RewardGroup"}
    nodes, per_node = dig(config, "cluster", "num_nodes"), dig(config, "cluster", "num_gpus_per_node")
    total = nodes * per_node if isinstance(nodes, int) and isinstance(per_node, int) else 0
    placement = dig(config, "cluster", "component_placement")
    found: dict[str, int] = {}
    for components, where in placement.items() if isinstance(placement, Mapping) else ():
        if isinstance(where, Mapping):
            where = where.get("placement")
        count = total if where == "all" else _count(str(where).split(":")[0])
        for component in str(components).split(","):
            if component.strip() in groups and count:
                found[groups[component.strip()]] = count
    return {w.name: found[w.name] for w in WORKERS if w.name in found}


def _count(text: str) -> int:
    """How many accelerators `0-7` or `0,2-3` name; 0 when it is not understood."""
    count = 0
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part, re.ASCII)
        if not match or int(match[2] or match[1]) < int(match[1]):
            return 0
        count += int(match[2] or match[1]) - int(match[1]) + 1
    return count
