"""Our words in the configuration of the verl that is installed: composed, and read back the same."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops import trainers
from rlprof_ops.request import request_from_dict
from rlprof_ops.trainers.verl.schemes import SCHEMES
from tests.dialects import test_acceptance as acceptance
from tests.dialects import test_verl_upstream as requests
from tests.trainers.environments import ensure

SCRIPT = Path(__file__).parent / "verl" / "real_gate.py"


def ask(overrides: list[list[str]]) -> list[Any]:
    """What the installed verl makes of each list of overrides, in its own environment."""
    done = subprocess.run(
        [str(ensure("verl").python), "-P", "-W", "ignore", str(SCRIPT)],
        input=json.dumps(overrides), capture_output=True, text=True, timeout=280, check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")},
    )  # fmt: skip
    rows: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return rows


@functools.cache
def told_by_verl() -> dict[str, Any]:
    """What verl 0.9.1 makes of every kind of the page's table and of every request, asked at once."""
    texts = {kind: requests.rendered(kind, "verl", "hydra").text for kind in requests.REQUESTS}
    texts |= {kind: acceptance.answer("verl", kind, "actor", "hydra")[1].text for kind in acceptance.KINDS}
    return dict(zip(texts, ask([list(requests.words(text)) for text in texts.values()]), strict=True))


TOOLS = {"nsight": "NsightSystemsProfiler", "torch": "Profiler", "memory": "TorchMemoryProfiler"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", requests.REQUESTS)
def test_verls_own_gate_opens_for_what_was_asked(kind: str) -> None:
    """Steps, ranks of every role, tool and mode; generation is captured by the torch tool alone."""
    asked = requests.REQUESTS[kind]
    [spec] = request_from_dict({"captures": [asked]}).captures
    told = told_by_verl()[kind]
    assert not isinstance(told, str), told
    assert told["steps"] == [step for step in range(1, 13) if any(step in run for run in spec.steps.runs)]
    assert told["joined"] is (spec.each == "step")
    for role, found in told["roles"].items():
        wanted = "*" in spec.workers or role in spec.workers
        if role == "rollout" and spec.backend != "torch":
            assert found["ranks"] == []
            continue
        ranks = list(spec.ranks) if spec.ranks is not None else [0, 1, 2, 3]
        assert found["ranks"] == (ranks if wanted else []), role
        if wanted:
            assert (found["tool"], found["discrete"]) == (TOOLS[spec.backend], spec.each == "phase"), role


@pytest.mark.timeout(300)
def test_the_column_of_the_page_is_what_verl_0_9_does() -> None:
    wanted = acceptance.column_of_the_page(acceptance.PACKAGED)
    assert [acceptance.cell(acceptance.PACKAGED, kind) for kind in acceptance.KINDS] == wanted


def test_every_request_composes_with_verl_0_9s_other_trainer(need: Any) -> None:
    """`ppo_trainer` is composed by verl's own Python above."""
    need("hydra", "omegaconf")
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    (folder,) = ensure("verl").folder.glob("venv/lib/python3*/site-packages/verl/trainer/config")
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        for kind in requests.REQUESTS:
            rendered = requests.rendered(kind, "verl", "hydra")
            config = compose("ppo_megatron_trainer", list(requests.words(rendered.text)))
            if rendered.losses or kind.startswith("memory") or "own range" in kind:
                continue
            text = OmegaConf.to_yaml(config.global_profiler)
            assert OmegaConf.create(text).steps == (
                [3] if "1:3" not in str(requests.REQUESTS[kind]) else [1, 2, 5]
            )


def test_memory_keeps_to_steps_ranks_and_roles(need: Any) -> None:
    """verl 0.9 gates torch_memory as every tool; before it was dumped by every rank after every step."""
    need("hydra", "omegaconf")
    rendered = trainers.get("verl").render(
        requests.request_from_dict({"captures": [requests.REQUESTS["memory critic"]]}), "hydra"
    )
    assert rendered.losses == ()
    assert "critic.profiler.enable=True" in rendered.text
    assert SCHEMES["verl"].exact_memory
