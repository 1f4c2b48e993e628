"""What RLinf's own code makes of configurations; run by RLinf's interpreter.

    python real_configs.py ROOT < question.json

The question is {"files": [path below ROOT, ...], "blocks": [a `cluster.profiling`, ...]}; the answer, the
last line, has a row for each. A file is composed by Hydra as RLinf's entry scripts compose theirs, its
`cluster` is read by `ClusterConfig`, and its placement counted by the placement class of its task on nodes of
GPUS GPUs. Addresses that a file leaves to the user (ROBOT_IP) are filled in. What fails is a text.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from rlinf.scheduler.cluster import Cluster, NodeGroupInfo, NodeInfo
from rlinf.scheduler.cluster.config import ClusterConfig
from rlinf.scheduler.hardware import HardwareInfo, HardwareResource
from rlinf.utils import placement as placements

GPUS = (2, 8)
STEPS = range(32)
GROUPS = ("ActorGroup", "actorgroup", "RolloutGroup", "EnvGroup", "actor", "rollout", "Other")
VARIABLES = ("DUAL_FRANKA_DATA_ROOT", "LINGBOT_VLA_PATH", "PI", "POLARIS_DATA_PATH", "ROBOCASA",
             "VLM_TREND_REWARD_DATA_ROOT")  # fmt: skip


def cluster_of(config: ClusterConfig, gpus: int) -> Cluster:
    """A cluster with what `NodeProbe` would have found on `num_nodes` nodes of `gpus` GPUs each."""
    nodes = []
    for rank in range(config.num_nodes):
        found = [HardwareResource("Accelerator", [HardwareInfo("Accelerator", "NV_GPU:x")] * gpus)]
        by_type: dict[str, list[HardwareInfo]] = {}
        for robot in config.get_node_hw_configs_by_rank(rank):
            kind = next(
                group.hardware.type
                for group in config.node_groups or []
                if group.hardware is not None and robot in group.hardware.configs
            )
            by_type.setdefault(kind, []).append(HardwareInfo(kind, kind))
        found += [HardwareResource(kind, infos) for kind, infos in by_type.items()]
        nodes.append(NodeInfo([], rank, str(rank), "::1", 8, sys.executable, {}, {}, found))
    groups = [
        NodeGroupInfo(
            group.label, [n for n in nodes if n.node_rank in group.node_ranks], group.hardware_type,
            group.ignore_hardware, group.env_configs,
        )
        for group in config.node_groups or []
    ]  # fmt: skip
    groups.append(NodeGroupInfo(NodeGroupInfo.DEFAULT_GROUP_LABEL, nodes))
    groups.append(NodeGroupInfo(NodeGroupInfo.NODE_PLACEMENT_GROUP_LABEL, nodes, ignore_hardware=True))
    cluster = object.__new__(Cluster)
    cluster._nodes, cluster._node_groups, cluster._num_nodes = nodes, groups, len(nodes)
    return cluster


def placement_class(cfg: DictConfig, path: Path) -> Any:
    """As the entry scripts of the examples choose it."""
    task = OmegaConf.select(cfg, "runner.task_type")
    if "wideseek" in str(path):
        eval_ = "Eval" if task == "reasoning_eval" else ""
        return getattr(placements, f"MultiAgentModelParallel{eval_}ComponentPlacement")
    if task == "reasoning_eval":
        return placements.ModelParallelEvalComponentPlacement
    model_parallel = task in ("reasoning", "coding_online_rl")
    return (
        placements.ModelParallelComponentPlacement if model_parallel else placements.HybridComponentPlacement
    )


def processes(cfg: DictConfig, path: Path, config: ClusterConfig, gpus: int) -> dict[str, int]:
    """Processes per component."""
    cluster = cluster_of(config, gpus)
    made = placement_class(cfg, path)(cfg, cluster)
    return {name: len(made.get_strategy(name).get_placement(cluster)) for name in made.components}


def read(path: Path) -> dict[str, Any]:
    """Groups by component, processes by component for each number of GPUs."""
    cfg = compose(path.stem)
    if OmegaConf.select(cfg, "cluster") is None:
        return {}
    OmegaConf.set_struct(cfg, False)
    text = OmegaConf.to_yaml(cfg.cluster)
    cfg.cluster = OmegaConf.create(re.sub(r"\b[A-Z_]*ROBOT_IP\w*", "127.0.0.1", text))
    config = ClusterConfig.from_dict_cfg(cfg.cluster)
    assert config.profiling is None
    names = {}
    for section in cfg:
        with contextlib.suppress(Exception):
            if name := cfg[section].get("group_name"):
                names[str(section)] = str(name)
    row: dict[str, Any] = {"groups": names}
    for gpus in GPUS:
        try:
            row[str(gpus)] = processes(cfg, path, config, gpus)
        except Exception as error:
            row[str(gpus)] = failed(error)
    return row


def profiled(block: Any) -> dict[str, Any] | str:
    """What `ClusterConfig` and its profiling class make of one `cluster.profiling`."""
    given = DictConfig({"num_nodes": 1, "component_placement": {}, "profiling": block})
    try:
        found = ClusterConfig.from_dict_cfg(given).profiling
        words = found.to_cli_tokens("/prefix") if found.backend == "nsight" else found.to_cli_tokens()
    except Exception as error:
        return failed(error)
    return {
        "enabled": found.enabled,
        "groups": [group for group in GROUPS if found.profiles_worker_group(group)],
        "steps": [step for step in STEPS if found.should_profile_step(step)],
        "words": words,
        "wrapped": [
            group
            for group in GROUPS
            if Cluster.modify_profile_context("python3", f"{group}:0", found) != "python3"
        ],
        "env": found.env if found.backend == "rocprof_sys" else None,
    }


def failed(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:160]


def main() -> None:
    logging.disable(logging.CRITICAL)
    root, question = Path(sys.argv[1]), json.load(sys.stdin)
    examples = root / "examples"
    os.environ |= dict.fromkeys(VARIABLES, "/nowhere") | {
        "REPO_PATH": str(root), "EMBODIED_PATH": str(examples / "embodiment"),
        "DIFFUSION_PATH": str(examples / "diffusion"), "REWARD_PATH": str(examples / "reward"),
    }  # fmt: skip
    files, folder = {}, None
    for name in question["files"]:
        path = root / name
        if path.parent != folder:
            folder = path.parent
            GlobalHydra.instance().clear()
            initialize_config_dir(config_dir=str(folder), version_base="1.1")
        try:
            files[name] = read(path)
        except Exception as error:
            files[name] = failed(error)
    print(json.dumps({"files": files, "blocks": [profiled(block) for block in question["blocks"]]}))


if __name__ == "__main__":
    with contextlib.redirect_stderr(io.StringIO()):
        main()
