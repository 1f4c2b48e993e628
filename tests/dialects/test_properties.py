"""Round trips through each trainer's words, and through bash and Hydra's own parser; nothing is lost
without a word.
"""

from __future__ import annotations

import copy
import functools
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests import upstream
from tests.dialects.strategies import EXPRESSIBLE, references
from tests.request.strategies import requests, texts

from rlprof_ops import trainers
from rlprof_ops.backends.nsight.presets import LONG
from rlprof_ops.request import ProfileRequest, RequestError
from rlprof_ops.trainers import hydra
from rlprof_ops.trainers.dialects import Framework
from rlprof_ops.trainers.trainer_file import UnknownWorld

pytestmark = pytest.mark.whole

FORMATS = [(name, fmt) for name in trainers.frameworks() for fmt in trainers.get(name).formats]


@pytest.mark.parametrize(("name", "fmt"), FORMATS)
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_what_a_trainer_can_say_comes_back_the_same(name: str, fmt: str, data: st.DataObject) -> None:
    request = data.draw(EXPRESSIBLE[name]())
    rendered = trainers.get(name).render(request, fmt)
    assert rendered.losses == ()
    assert trainers.get(name).import_(rendered.text, "test").request == request


@pytest.mark.parametrize(("name", "fmt"), FORMATS)
@given(request=requests(), data=st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_rendering_without_losses_means_the_same(
    name: str, fmt: str, request: ProfileRequest, data: st.DataObject
) -> None:
    dialect = trainers.get(name)
    patterns = st.lists(
        st.sampled_from([*(w.name for w in dialect.workers), "*", "*[rR]*"]),
        min_size=1,
        max_size=3,
        unique=True,
    )
    request = replace(
        request, captures=tuple(replace(c, workers=tuple(data.draw(patterns))) for c in request.captures)
    )
    rendered = dialect.render(request, fmt)
    if rendered.losses:
        assert all(f"# lost: {' '.join(loss.split())}" in rendered.text for loss in rendered.losses)
        return
    again = dialect.import_(rendered.text, "test").request
    assert _meaning(dialect, again) == _meaning(dialect, request)


def _meaning(dialect: Framework, request: ProfileRequest) -> dict[str, Any]:
    """What each process would take, whatever way it was written."""
    return {
        f"{worker.name}/{rank}": [
            (
                spec.backend,
                str(spec.steps),
                spec.each,
                _options(spec.options) | dict.fromkeys(spec.flags, "true"),
                spec.env,
            )
            for spec in request.for_worker(worker.name, rank)
        ]
        for worker in dialect.workers
        for rank in range(4)
    }


def _options(options: dict[str, str]) -> dict[str, str]:
    return {LONG.get(k, k): v for k, v in options.items()}


@pytest.mark.parametrize("name", trainers.frameworks())
@given(text=st.one_of(st.text(max_size=60), st.text(st.sampled_from("ab=[]{}'\"\\,:+~.#\n $"), max_size=40)))
def test_any_text_is_imported_or_refused(name: str, text: str) -> None:
    try:
        trainers.get(name).import_(text, "test")
    except RequestError as error:
        assert error.problems


KEYS = [
    "global_profiler.tool",
    "global_profiler.steps",
    "actor_rollout_ref.actor.profiler.enable",
    "actor_rollout_ref.actor.profiler.ranks",
    "actor_rollout_ref.actor.profile_ranks",
    "trainer.profile_steps",
    "cluster.profiling",
    "cluster.profiling.backend",
    "cluster.profiling.options",
    "cluster.profiling.worker_groups",
    "cluster.profiling.steps",
    "cluster.profiling.flags",
    "actor.megatron.use_profiler",
    "actor.megatron.profiler",
    "actor_rollout_ref",
    "global_profiler.global_tool_config.nsys.discrete",
    "global_profiler.global_tool_config.nsys.worker_nsight_options",
    "actor_rollout_ref.actor.profiler.tool_config.torch.contents",
]
VALUES = [
    "null",
    "[1,2]",
    "[]",
    "nsys",
    "torch",
    "torch_memory",
    "True",
    "nsight",
    "rocprof_sys",
    "[ActorGroup]",
    "all",
    "{t:cuda}",
    "-1",
    "[-1]",
    "['0']",
    "x",
    "{}",
    "{activities:[gpu]}",
    "[cpu,foo]",
    "1.5",
    "''",
]


@pytest.mark.parametrize("name", [n for n in trainers.frameworks() if n != "nemo_rl"])
@given(settings_=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=8))
def test_any_configuration_is_imported_or_refused(name: str, settings_: dict[str, str]) -> None:
    text = "\n".join(hydra.shell_word(f"{key}={value}") for key, value in settings_.items())
    try:
        trainers.get(name).import_(text, "test")
    except RequestError as error:
        assert error.problems


def bash_words(text: str) -> list[str]:
    """The words that a command gets when the text is pasted behind it in a script."""
    run = subprocess.run(["bash", "-c", f"printf '%s\\0' \\\n{text}"], capture_output=True, check=True)
    return run.stdout.decode().split("\0")[:-1]


REAL = {
    "verl-0.8": ("verl_config-b178a3cd5", "verl/trainer/config", "ppo_trainer"),
    "verl-0.6": ("verl_config-v0.7.0", "verl/trainer/config", "ppo_trainer"),
    "verl-0.5": ("verl_config-v0.5.0", "verl/trainer/config", "ppo_trainer"),
    "verl-0.4": ("verl_config-v0.4.1", "verl/trainer/config", "ppo_trainer"),
    "rlinf": ("rlinf", "examples/reasoning/config/math", "moonlight-16b-grpo-megatron"),
}


def real_configuration(name: str) -> tuple[str, str]:
    """Folder and name of a configuration that the trainer ships; the document's scheme has no trainer."""
    if name == "verl-legacy":
        return str(Path(__file__).parent / "data"), "verl-legacy"
    archive, folder, top = REAL[name]
    return str(upstream.tree(archive) / folder), top


def composed(folder: str, top: str, words: tuple[str, ...] = ()) -> Any:
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(folder, version_base=None):
        return compose(top, overrides=list(words))


@functools.cache
def unchanged(folder: str, top: str) -> Any:
    return composed(folder, top)


@pytest.mark.parametrize("name", [*REAL, "verl-legacy"])
@pytest.mark.upstream
@given(data=st.data())
@settings(
    max_examples=5,
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
)
def test_overrides_survive_bash_and_hydra(name: str, data: st.DataObject) -> None:
    """Hydra itself applies them to a real configuration of the trainer."""
    from omegaconf import OmegaConf

    place = real_configuration(name)
    request = data.draw(EXPRESSIBLE[name]())
    dialect = trainers.get(name)
    body = "\n".join(
        line for line in dialect.render(request, "hydra").text.splitlines() if not line.startswith("#")
    )
    config = composed(*place, tuple(bash_words(body)) if body.strip() else ())
    with_yaml = copy.deepcopy(unchanged(*place))
    OmegaConf.set_struct(with_yaml, False)
    with_yaml.merge_with(OmegaConf.create(dialect.render(request, "yaml").text) or {})
    assert OmegaConf.to_container(config) == OmegaConf.to_container(with_yaml), "overrides and YAML agree"
    profiling = {key: value for key, value in OmegaConf.to_container(config).items() if key != "defaults"}
    whole = dialect.import_(json.dumps(profiling, ensure_ascii=False), "test").request
    for found, asked in zip(
        whole.captures, request.captures, strict=True
    ):  # a whole file also holds the trainer's defaults
        assert replace(found, options=asked.options) == asked
        assert found.options.items() >= asked.options.items()


@given(
    st.one_of(
        texts, st.text(st.sampled_from("a'\"\\,:=[]{}$ ()#"), max_size=12).map(lambda t: t.replace("$", ""))
    )
)
def test_text_values_survive_hydra(text: str) -> None:
    pytest.importorskip("hydra", reason="hydra-core is not installed")
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = OverridesParser.create().parse_override("key=" + hydra.hydra_value(text, top=True))
    value = override.value()
    assert str(getattr(value, "text", value)) == text
    assert hydra.parse_value(hydra.hydra_value(text, top=True)) == text
    assert hydra.parse_value(hydra.hydra_value([text, 1, None])) == [text, 1, None]


@given(texts | references | st.text(st.sampled_from("$\\{}:a'\""), max_size=12))
def test_no_text_is_an_interpolation_to_omegaconf(text: str) -> None:
    """`${USER}` of a request's folder is no key of the trainer's: read as one, it ends the trainer."""
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser", reason="no hydra-core")
    from omegaconf import OmegaConf

    override = parser.OverridesParser.create().parse_override("key=" + hydra.hydra_value(text, top=True))
    assert str(OmegaConf.create({"key": override.value()}).key) == text
    written = hydra.to_yaml([hydra.Setting(("key",), text)])
    assert OmegaConf.create(written).key == text
    assert hydra.unescaped(hydra.read_settings(written, "test")) == {"key": text}


WORLD_KEYS = (
    "cluster",
    "num_nodes",
    "gpus_per_node",
    "num_gpus_per_node",
    "component_placement",
    "actor,env",
    "actor",
    "policy",
    "generation",
    "backend",
    "colocated",
    "enabled",
    "trainer",
    "nnodes",
    "n_gpus_per_node",
    "placement",
    "vllm_cfg",
    "tensor_parallel_size",
)
configurations = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 9), st.sampled_from(("vllm", "all", "0-7", "5-2", "x", ""))
    ),
    lambda inner: st.dictionaries(st.sampled_from(WORLD_KEYS), inner, max_size=5),
    max_leaves=12,
)


@pytest.mark.parametrize("name", trainers.frameworks())
@given(config=st.dictionaries(st.sampled_from(WORLD_KEYS), configurations, max_size=5))
def test_any_configuration_has_a_world_or_a_reason(name: str, config: dict[str, Any]) -> None:
    try:
        found = trainers.get(name).world(config, None)
    except UnknownWorld as error:
        assert str(error)
    else:
        assert all(ranks >= 0 for ranks in found.values())
