"""verl's roles and names: what both of its configuration schemes and the plan need to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers.dialects import WorkerKind
from rlprof_ops.trainers.hydra import dig

# Where a role's settings are (verl `b178a3cd5`).
ROLE_PATHS: dict[str, tuple[str, ...]] = {
    "actor": ("actor_rollout_ref", "actor"),
    "rollout": ("actor_rollout_ref", "rollout"),
    "ref": ("actor_rollout_ref", "ref"),
    "critic": ("critic",),
    "reward_model": ("reward_model",),
    "env": ("env", "train"),  # of the VLA trainer
}
WORKERS = (
    WorkerKind("actor", ("policy_worker",), ("logprob", "train", "weight_sync")),
    WorkerKind("rollout", ("generation_worker",), ("generation",)),
    WorkerKind("ref", ("ref_worker", "reference_worker"), ("ref_logprob",)),
    WorkerKind("critic", ("critic_worker", "value_worker"), ("train",)),
    WorkerKind("reward_model", ("reward_worker",), ("reward",)),
    WorkerKind("env", ("env_worker",), (), "the VLA trainer's environment worker"),
    WorkerKind(CONTROLLER, ("driver", "TaskRunner"), ()),
)
PHASES = {
    "generation": ("gen", "generate_sequences"),
    "reward": ("reward", "compute_rm_score"),
    "logprob": ("old_log_prob", "compute_log_prob"),
    "ref_logprob": ("ref", "compute_ref_log_prob"),
    "values": ("values", "compute_values"),
    "advantage": ("adv",),
    "train": ("update_actor",),
    "critic_train": ("update_critic",),
    "weight_sync": ("update_weights", "sync_rollout_weights", "param_sync"),
}


def world(config: Mapping[str, Any], gpus_per_node: int | None = None) -> dict[str, int]:
    """Ranks per role of a verl configuration; a rollout rank is a replica, on its tensor x data x pipeline
    parallel GPUs.
    """

    def number(default: int, *path: str) -> int:
        value = dig(config, *path)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default

    gpus = number(0, "trainer", "nnodes") * (gpus_per_node or number(0, "trainer", "n_gpus_per_node"))
    if not gpus:
        return {}
    replica = 1
    for parallel in ("tensor_model", "data", "pipeline_model"):
        replica *= number(1, "actor_rollout_ref", "rollout", f"{parallel}_parallel_size")
    found = {"actor": gpus, "rollout": max(1, gpus // replica)}
    if dig(config, "actor_rollout_ref", "actor", "use_kl_loss") or dig(
        config, "algorithm", "use_kl_in_reward"
    ):
        found["ref"] = gpus
    if dig(config, "critic", "enable") is True or dig(config, "algorithm", "adv_estimator") == "gae":
        found["critic"] = gpus
    if dig(config, "reward_model", "enable") is True:
        found["reward_model"] = gpus
    return found | {CONTROLLER: 1}
