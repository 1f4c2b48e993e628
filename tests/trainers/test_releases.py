"""Each release of a trainer that is on the package index, held against its adapter before a user does."""

from __future__ import annotations

from typing import Any

import pytest

from rlprof_ops.runtime.process.actor_labels import NewActor
from rlprof_ops.trainers.openrlhf import adapter as openrlhf
from rlprof_ops.trainers.trl import adapter as trl
from tests.trainers import releases

RECORD = releases.record()
EVERY = [(name, version) for name, found in RECORD.items() for version in found]


@pytest.mark.trainers
@pytest.mark.parametrize("name", RECORD)
def test_all_of_the_newest_release_is_followed(name: str) -> None:
    version = releases.newest(name)
    lacking = {module: why for module, why in releases.answer_of(name, version).items() if why}
    assert not lacking, f"{name} {version} has renamed what the adapter follows"


@pytest.mark.trainers
@pytest.mark.long
@pytest.mark.parametrize(("name", "version"), EVERY)
def test_every_release_is_followed_as_the_record_says(name: str, version: str) -> None:
    assert releases.answer_of(name, version) == RECORD[name][version]


@pytest.mark.trainers
def test_phases_of_trl_before_it_had_a_class_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until 0.26 `profiling_context` is a function; its weights go over in `_move_model_to_vllm`."""
    heard: list[str] = []

    class Range:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            heard.append(self.name)

        def __exit__(self, *_: object) -> None:
            heard.append(f"end of {self.name}")

    class Profiler:
        active = True
        range = Range

    training: Any = trl._Training()
    training.profiler, training.step = Profiler(), 1
    monkeypatch.setattr(trl, "_TRAINING", training)
    module: Any = releases.Shapes(releases.source_of("trl", "0.26.2")).module("trl.extras.profiling")
    trl.install("trl.extras.profiling", module)
    for name in ("transformers.generate", "_move_model_to_vllm", "my_reward"):
        with module.profiling_context(object(), name):
            heard.append("inside")
    assert heard == ["generation", "inside", "end of generation", "weight_sync", "inside",
                     "end of weight_sync", "inside"]  # fmt: skip


@pytest.mark.trainers
def test_engines_of_earlier_releases_have_their_role() -> None:
    file = releases.source_of("openrlhf", "0.10.1") / "openrlhf/trainer/ray/vllm_engine.py"
    assert "class LLMRayActor" in file.read_text()
    actor = NewActor("LLMRayActor", "openrlhf.trainer.ray.vllm_engine", "", {})
    assert openrlhf.role_of(actor) == ("rollout", None)
