"""Our words in the configuration of the verl that is installed: composed, and read back the same."""

from __future__ import annotations

from typing import Any

import pytest

from rlprof_ops import frameworks
from rlprof_ops.frameworks.verl.schemes import SCHEMES
from tests.frameworks import test_verl_upstream as requests
from tests.trainers.environments import ensure


@pytest.mark.parametrize("top", ["ppo_trainer", "ppo_megatron_trainer"])
def test_every_request_composes_with_verl_0_9(top: str, need: Any) -> None:
    need("hydra", "omegaconf")
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    (folder,) = ensure("verl").folder.glob("venv/lib/python3*/site-packages/verl/trainer/config")
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        for kind in requests.REQUESTS:
            rendered = requests.rendered(kind, "verl", "hydra")
            config = compose(top, list(requests.words(rendered.text)))
            if rendered.losses or kind.startswith("memory") or "own range" in kind:
                continue
            text = OmegaConf.to_yaml(config.global_profiler)
            assert OmegaConf.create(text).steps == (
                [3] if "1:3" not in str(requests.REQUESTS[kind]) else [1, 2, 5]
            )


def test_memory_keeps_to_steps_ranks_and_roles(need: Any) -> None:
    """verl 0.9 gates torch_memory as every tool; before it was dumped by every rank after every step."""
    need("hydra", "omegaconf")
    rendered = frameworks.get("verl").render(
        requests.request_from_dict({"captures": [requests.REQUESTS["memory critic"]]}), "hydra"
    )
    assert rendered.losses == ()
    assert "critic.profiler.enable=True" in rendered.text
    assert SCHEMES["verl"].exact_memory
