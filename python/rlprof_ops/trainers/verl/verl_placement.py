"""How many ranks each role of a verl configuration has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers.hydra import is_interpolation
from rlprof_ops.trainers.trainer_file import UnknownWorld, dig_resolved, whole_number


def world(config: Mapping[str, Any], gpus_per_node: int | None = None) -> dict[str, int]:
    """Ranks per role of a verl configuration; a rollout rank is a replica, on its tensor x data x pipeline
    parallel GPUs.

    Raises:
        UnknownWorld: verl computes a setting from what the configuration does not say.
    """

    def dig(*path: str) -> Any:
        value = dig_resolved(config, *path)
        if is_interpolation(value):
            raise UnknownWorld(f"{'.'.join(path)} is {value!r}, which verl computes")
        return value

    gpus = (whole_number(config, "trainer", "nnodes") or 0) * (
        gpus_per_node or whole_number(config, "trainer", "n_gpus_per_node") or 0
    )
    if not gpus:
        return {}
    replica = 1
    for parallel in ("tensor_model", "data", "pipeline_model"):
        path = ("actor_rollout_ref", "rollout", f"{parallel}_parallel_size")
        replica *= whole_number(config, *path) or 1
    found = {"actor": gpus, "rollout": max(1, gpus // replica)}
    if dig("actor_rollout_ref", "actor", "use_kl_loss") or dig("algorithm", "use_kl_in_reward"):
        found["ref"] = gpus
    if dig("critic", "enable") is True or dig("algorithm", "adv_estimator") == "gae":
        found["critic"] = gpus
    if dig("reward_model", "enable") is True:
        found["reward_model"] = gpus
    return found | {CONTROLLER: 1}
