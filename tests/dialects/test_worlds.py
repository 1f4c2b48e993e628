"""How many ranks a trainer's configuration means: every real one, held against the trainers' own code."""

from __future__ import annotations

import copy
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import upstream

from rlprof_ops import trainers
from rlprof_ops.request import RequestError
from rlprof_ops.trainers import trainer_file
from rlprof_ops.trainers.ranks_by_worker import world_of_trainer
from rlprof_ops.trainers.rlinf.rlinf_placement import group_names, processes
from rlprof_ops.trainers.trainer_file import UnknownWorld, dig_resolved

pytestmark = pytest.mark.whole

NEMO_RL, RLINF, VERL = (trainers.get(name) for name in ("nemo_rl", "rlinf", "verl"))
# What the ranks of NeMo RL's workers follow from.
FACTS = (
    "cluster.num_nodes",
    "cluster.gpus_per_node",
    "policy.megatron_cfg.enabled",
    "policy.dtensor_cfg.enabled",
    "policy.dtensor_cfg._v2",
    "policy.generation.backend",
    "policy.generation.colocated.enabled",
    "policy.generation.colocated.resources.num_nodes",
    "policy.generation.colocated.resources.gpus_per_node",
    "policy.generation.vllm_cfg.tensor_parallel_size",
    "policy.generation.vllm_cfg.pipeline_parallel_size",
    "policy.generation.vllm_cfg.async_engine",
    "policy.generation.sglang_cfg.sglang_server_config.num_gpus_per_engine",
    "generation.vllm_cfg.tensor_parallel_size",
)
TRUE_REASONS = (
    "there is no cluster.num_nodes and cluster.gpus_per_node",
    "non_colocated_teachers reserves nodes",
    "backend is 'dynamo'",
)


@pytest.fixture(autouse=True)
def sources(need: Any) -> None:
    need("upstream")


@functools.cache
def ours(path: str) -> dict[str, Any]:
    """`read_inherited`, each file parsed once."""
    return real_read_inherited(path)


real_read_inherited = trainer_file.read_inherited


@pytest.fixture(autouse=True)
def parse_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: str, depth: int = 0) -> dict[str, Any]:
        return copy.deepcopy(ours(os.path.normpath(path)) if depth < 20 else real_read_inherited(path, depth))

    monkeypatch.setattr(trainer_file, "read_inherited", read)
    monkeypatch.setattr("rlprof_ops.trainers.ranks_by_worker.read_inherited", read)


def configs(name: str) -> list[Path]:
    return sorted((upstream.tree(name) / "examples").rglob("*.yaml"))


def test_every_config_of_nemo_rl_inherits_as_its_own_loader_reads_it(
    need: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("omegaconf", "hydra")
    from omegaconf import OmegaConf

    loader = upstream.module(upstream.tree("nemo_rl") / "nemo_rl/utils/config.py", "upstream_nemo_rl_config")
    load = loader.load_config_with_inheritance
    parents = functools.cache(load)

    def parent(path: Path, folder: Path) -> Any:
        marked = "_override_" in path.read_text()  # it takes the mark out of what it merges
        return copy.deepcopy(parents(path, folder)) if marked else parents(path, folder)

    monkeypatch.setattr(loader, "load_config_with_inheritance", parent)
    compared = 0
    for path in configs("nemo_rl"):
        theirs = load(path)
        tree = ours(str(path))
        for fact in FACTS:
            expected = OmegaConf.select(theirs, fact, throw_on_missing=False)
            assert dig_resolved(tree, *fact.split(".")) == expected, (path.name, fact)
            compared += expected is not None
    assert compared > 2500


def test_every_config_of_nemo_rl_is_right_or_refused_with_the_reason() -> None:
    told, refused = 0, 0
    for path in configs("nemo_rl"):
        try:
            world = world_of_trainer(NEMO_RL, str(path))
        except RequestError as error:
            assert any(reason in str(error) for reason in TRUE_REASONS), error
            refused += 1
            continue
        told += 1
        tree = ours(str(path))
        gpus = dig_resolved(tree, "cluster", "num_nodes") * dig_resolved(tree, "cluster", "gpus_per_node")
        assert 0 < max(world.values()) <= gpus, path.name
        assert set(world) <= {worker.name for worker in NEMO_RL.workers}, path.name
    assert (told, refused) == (320, 19)


WORLDS = [  # by hand, from setup() of its algorithms
    ("grpo_math_1B.yaml", {"dtensor_policy_worker_v2": 1, "vllm_generation_worker": 1}),
    ("grpo_math_70B_megatron.yaml", {"megatron_policy_worker": 64, "vllm_generation_worker": 8}),
    ("sft.yaml", {"dtensor_policy_worker_v2": 1}),
    ("dpo.yaml", {"dtensor_policy_worker": 1}),
    ("grpo_math_1B_sglang.yaml", {"dtensor_policy_worker_v2": 2, "sglang_generation_worker": 2}),
    ("evals/eval.yaml", {"vllm_generation_worker": 1}),
]


@pytest.mark.parametrize(("name", "world"), WORLDS, ids=[name for name, _ in WORLDS])
def test_some_configs_of_nemo_rl_by_hand(name: str, world: dict[str, int]) -> None:
    path = upstream.tree("nemo_rl") / "examples" / "configs" / name
    assert world_of_trainer(NEMO_RL, str(path)) == world


def test_generation_apart_from_training_takes_its_own_gpus() -> None:
    for path in configs("nemo_rl"):
        tree = ours(str(path))
        apart = dig_resolved(tree, "policy", "generation", "colocated", "enabled") is False
        if not apart or not path.name.startswith("grpo"):
            continue
        try:
            world = world_of_trainer(NEMO_RL, str(path))
        except RequestError:
            continue
        policy = next(n for name, n in world.items() if "policy" in name)
        assert policy < dig_resolved(tree, "cluster", "num_nodes") * dig_resolved(
            tree, "cluster", "gpus_per_node"
        )


class _Resolver:
    """A cluster of 16 accelerators, as far as RLinf's parser asks."""

    hardware_resource_count = 16
    hardware_types = ("GPU",)


PLACEMENTS = [
    "0-7", "0", "0-0", "all", "0-3:0-7", "0-1:0-3,3-5,7-10:7-14", "0:0-1", "0-1:0", "4-7", "24-63",
    "0-1:0-199,2-3:200-599",
]  # fmt: skip


@pytest.mark.parametrize("text", PLACEMENTS)
def test_placements_are_counted_as_rlinfs_own_parser_does(text: str) -> None:
    root = upstream.tree("rlinf") / "rlinf" / "scheduler"
    _Resolver.hardware_resource_count = 64
    space = upstream.definitions(root / "cluster" / "utils.py", "parse_rank_config")
    space |= upstream.definitions(
        root / "placement" / "placement.py", "ComponentPlacement._parse_rank_map", **space
    )
    ranks = space["_parse_rank_map"](None, text, _Resolver())
    assert processes(text, 64) == sum(len(part) for part in ranks.values())


@pytest.mark.parametrize("text", ["", "x", "3-1", "0-3:x", "0-1-2"])
def test_a_placement_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UnknownWorld):
        processes(text, 8)


def test_every_config_of_rlinf_is_right_or_refused_with_the_reason() -> None:
    told, refused, groups = 0, [], set()
    for path in configs("rlinf"):
        try:
            world = world_of_trainer(RLINF, str(path))
        except RequestError as error:
            refused.append(str(error))
            if "on all accelerators" in str(error):
                assert world_of_trainer(RLINF, str(path), 8), path.name
            continue
        told += 1
        groups |= set(world)
        tree = ours(str(path))
        assert set(world) <= {*group_names(tree), "actor", "env", "rollout", "reward", "reward_server"}
    assert (told, len(refused)) == (101, 231)
    reasons = ("cluster.component_placement", "on all accelerators", "placed twice, which RLinf refuses")
    assert all(any(reason in why for reason in reasons) for why in refused)
    assert {"ActorGroup", "InferenceGroup", "RewardActorGroup"} <= groups


def test_a_groups_name_is_what_its_configuration_says(tmp_path: Path) -> None:
    config = {
        "cluster": {"num_nodes": 2, "component_placement": {"actor, agent": "0-3:0-7", "env": "all"}},
        "actor": {"group_name": "MyActors"},
        "agentloop": {"group_name": "Loop"},
        "env": {"group_name": "${runner.env_name}"},
        "runner": {"env_name": "Simulators"},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    found = world_of_trainer(RLINF, str(tmp_path / "c.yaml"), gpus_per_node=4)
    assert found == {"MyActors": 8, "Loop": 8, "Simulators": 8}


@pytest.mark.parametrize("version", upstream.VERL)
def test_hydras_defaults_are_followed_as_hydra_does(version: str, need: Any) -> None:
    """Every key of verl's top configurations, with the groups that they name."""
    need("hydra", "omegaconf")
    folder = upstream.verl(version) / "verl" / "trainer" / "config"
    assert sum(same_as_hydra(folder / f"{top}.yaml") for top in ("ppo_trainer", "sft_trainer")) > 300


def same_as_hydra(path: Path) -> int:
    """How many settings of a top configuration were compared with what Hydra composes."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(path.parent), version_base=None):
        theirs = dict(leaves(OmegaConf.to_container(compose(path.stem), resolve=False)))
    mine = dict(leaves(ours(str(path))))
    mine = {place: value for place, value in mine.items() if not place.startswith("hydra.")}
    assert sorted(mine) == sorted(theirs), path
    # 1e-6 and 100_000 are numbers in YAML 1.1 as OmegaConf reads it.
    for place, value in mine.items():
        number = isinstance(theirs[place], (int, float)) and isinstance(value, str)
        assert (float(value) if number else value) == theirs[place], (path, place)
    return len(mine)


def leaves(tree: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def test_verls_own_default_of_a_group_counts() -> None:
    """`tensor_model_parallel_size` 2 stands in `rollout/rollout.yaml`, which ppo_trainer names."""
    path = upstream.verl("v0.7.0") / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    assert world_of_trainer(VERL, str(path)) == {"actor": 8, "rollout": 4, "critic": 8, "controller": 1}


def test_entries_that_hydra_has_beside_groups(tmp_path: Path) -> None:
    files = {
        "main.yaml": "defaults: [engine: fast, 'worker@a.b': '${engine}_worker', optional none: x, _self_,"
        " sub/kind@c: one, override /sub/kind@c: two]\nown: {key: 1}\n",
        "engine/fast.yaml": "# @package _global_\nspeed: 3\n",
        "worker/fast_worker.yaml": "defaults: [/engine/inner@here, _self_]\nranks: 4\n",
        "engine/inner.yaml": "deep: true\n",
        "sub/kind/one.yaml": "kind: 1\n",
        "sub/kind/two.yaml": "kind: 2\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert same_as_hydra(tmp_path / "main.yaml") == 5
    assert ours(str(tmp_path / "main.yaml"))["c"] == {"kind": 2}


def test_a_file_that_is_its_own_parent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (tmp_path / "a.yaml").write_text("defaults: a.yaml\n")
    with pytest.raises(RequestError, match="inherits through more than"):
        real_read_inherited(str(tmp_path / "a.yaml"))
