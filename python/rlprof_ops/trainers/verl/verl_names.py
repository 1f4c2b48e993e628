"""verl's roles and names: what both of its configuration schemes and the plan need to know."""

from __future__ import annotations

from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers.dialects import WorkerKind

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
