"""How many ranks each of NeMo RL's workers has, as `setup()` of its algorithms builds its clusters.

Every GPU of the training cluster holds a policy rank. A generation worker is one engine, on its tensor x
pipeline parallel GPUs (nemo_rl/algorithms/grpo.py, distillation.py, models/generation of 2026-08).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof_ops.trainers.trainer_file import UnknownWorld, dig_resolved, whole_number

COLOCATED = ("policy", "generation", "colocated")


def world(config: Mapping[str, Any], gpus_per_node: int | None = None) -> dict[str, int]:
    """Ranks per worker of a NeMo RL configuration.

    Raises:
        UnknownWorld: the configuration does not say it, or NeMo RL would refuse it.
    """
    nodes = whole_number(config, "cluster", "num_nodes")
    per_node = gpus_per_node or whole_number(config, "cluster", "gpus_per_node")
    if not nodes or not per_node:
        raise UnknownWorld("there is no cluster.num_nodes and cluster.gpus_per_node")
    if dig_resolved(config, "policy") is None:
        return _generation(config, ("generation",), nodes * per_node)
    free_nodes = nodes - _reserved_nodes(config, nodes)
    free_per_node = per_node - _reward_gpus(config, nodes)
    if free_nodes <= 0 or free_per_node <= 0:
        raise UnknownWorld("reward model and teachers take every GPU of cluster.num_nodes x gpus_per_node")
    train = generation = free_nodes * free_per_node
    has_generation = isinstance(dig_resolved(config, "policy", "generation"), Mapping) and _generates(config)
    if has_generation and dig_resolved(config, *COLOCATED, "enabled") is False:
        train, generation = _apart(config, free_nodes, free_per_node, per_node)
    found = {_policy(config): train}
    if has_generation:
        found |= _generation(config, ("policy", "generation"), generation)
    return found


def _generates(config: Mapping[str, Any]) -> bool:
    """SFT, DPO and reward-model configurations may inherit a `policy.generation` that nothing reads."""
    return not any(dig_resolved(config, section) is not None for section in ("sft", "dpo", "rm"))


def _apart(config: Mapping[str, Any], nodes: int, gpus: int, per_node: int) -> tuple[int, int]:
    """GPUs for training and for generation where they are apart."""
    asked = whole_number(config, *COLOCATED, "resources", "gpus_per_node")
    asked_nodes = whole_number(config, *COLOCATED, "resources", "num_nodes")
    where = "policy.generation.colocated.resources"
    if nodes == 1:
        if not asked or asked_nodes not in (None, 1) or asked >= gpus:
            raise UnknownWorld(
                f"{where}.gpus_per_node must be from 1 to {gpus - 1} on one node, and num_nodes 1 or null"
            )
        return gpus - asked, asked
    if not asked_nodes or asked_nodes >= nodes or asked != per_node:
        raise UnknownWorld(
            f"{where} must have num_nodes from 1 to {nodes - 1} and gpus_per_node {per_node} on several nodes"
        )
    return (nodes - asked_nodes) * per_node, asked_nodes * per_node


def _reward(config: Mapping[str, Any]) -> bool:
    """Whether a reward model runs as an environment, with GPUs of its own."""
    data = dig_resolved(config, "data")
    names = [data.get("env_name")] if isinstance(data, Mapping) else []
    for part in ("default", "train", "validation"):
        own = data.get(part) if isinstance(data, Mapping) else None
        for one in own if isinstance(own, list) else [own]:
            names.append(one.get("env_name") if isinstance(one, Mapping) else None)
    return "reward_model" in names


def _reward_gpus(config: Mapping[str, Any], nodes: int) -> int:
    """GPUs of the one node that a reward model takes."""
    if nodes != 1 or not _reward(config):
        return 0
    return whole_number(config, "env", "reward_model", "resources", "gpus_per_node") or 0


def _reserved_nodes(config: Mapping[str, Any], nodes: int) -> int:
    """Whole nodes for a reward model and for teachers that are not colocated."""
    taken = 0
    if nodes > 1 and _reward(config):
        taken += whole_number(config, "env", "reward_model", "resources", "num_nodes") or 0
    opd = "on_policy_distillation"
    if dig_resolved(config, opd, "enabled") and dig_resolved(
        config, opd, "non_colocated_teachers", "enabled"
    ):
        raise UnknownWorld(f"{opd}.non_colocated_teachers reserves nodes, how many is in code alone")
    return taken


def _policy(config: Mapping[str, Any]) -> str:
    megatron = dig_resolved(config, "policy", "megatron_cfg", "enabled") is True
    dtensor = dig_resolved(config, "policy", "dtensor_cfg", "enabled") is True
    if megatron == dtensor:
        raise UnknownWorld("one of policy.megatron_cfg.enabled and policy.dtensor_cfg.enabled must be true")
    if megatron:
        quant = dig_resolved(config, "policy", "quant_cfg") is not None
        return "megatron_quant_policy_worker" if quant else "megatron_policy_worker"
    return (
        "dtensor_policy_worker_v2"
        if dig_resolved(config, "policy", "dtensor_cfg", "_v2")
        else "dtensor_policy_worker"
    )


def _generation(config: Mapping[str, Any], path: tuple[str, ...], gpus: int) -> dict[str, int]:
    backend = dig_resolved(config, *path, "backend")
    if backend == "megatron":
        return {}  # the policy workers generate themselves
    if backend not in ("vllm", "sglang", "trtllm"):
        raise UnknownWorld(
            f"{'.'.join(path)}.backend is {backend!r}; known are vllm, sglang, trtllm and megatron"
        )
    cfg = (*path, f"{backend}_cfg")
    if backend == "sglang":
        size = whole_number(config, *cfg, "sglang_server_config", "num_gpus_per_engine") or whole_number(
            config, *cfg, "gpus_per_server"
        )
        size = size or whole_number(config, *cfg, "tensor_parallel_size") or 1
    else:
        size = (whole_number(config, *cfg, "tensor_parallel_size") or 1) * (
            whole_number(config, *cfg, "pipeline_parallel_size") or 1
        )
    if not size or gpus % size:
        raise UnknownWorld(f"{gpus} GPUs are no multiple of the {size} that one {backend} engine takes")
    name = {"sglang": "sglang_generation_worker", "trtllm": "trtllm_async_generation_worker"}.get(backend)
    if name is None:
        engine = dig_resolved(config, *cfg, "async_engine") is True
        name = "vllm_async_generation_worker" if engine else "vllm_generation_worker"
    return {name: gpus // size}
