"""How many ranks each role of a verl configuration has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers.hydra import dig


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
