"""verl of every scheme: our words composed by Hydra with its own configurations, and gated by its own
classes.
"""

from __future__ import annotations

import functools
import shlex
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests import upstream

from rlprof_ops import trainers
from rlprof_ops.request import request_from_dict
from rlprof_ops.trainers.verl.schemes import SCHEMES, scheme_of_version

pytestmark = pytest.mark.whole
DIALECT = {
    "v0.4.1": "verl-0.4",
    "v0.5.0": "verl-0.5",
    "v0.6.1": "verl-0.6",
    "v0.7.0": "verl-0.6",
    "b178a3cd5": "verl-0.8",
}
TOPS = ("ppo_trainer", "ppo_megatron_trainer")


def _requests() -> dict[str, dict[str, Any]]:
    """22 kinds of requests: tool x mode x who."""
    found: dict[str, dict[str, Any]] = {}
    for who in ("actor", "rollout", "ref", "critic", "reward_model", "*", "actor,rollout,ref"):
        found[f"nsight {who}"] = {"workers": who, "steps": "1:3,5", "ranks": [0, 1]}
    for who in ("actor", "rollout", "ref", "critic", "reward_model", "*", "actor,rollout"):
        found[f"torch {who}"] = {"backend": "torch", "workers": who, "steps": "3", "each": "phase",
                                 "options": {"with_stack": "true", "activities": "cpu,cuda"}}  # fmt: skip
    for who in ("actor", "critic", "*"):
        found[f"memory {who}"] = {"backend": "memory", "workers": who, "steps": "3",
                                  "options": {"stack_depth": "8"}}  # fmt: skip
    found["nsight phases"] = {"workers": "*", "steps": "1:3,5", "each": "phase"}
    found["nsight options"] = {
        "workers": "actor",
        "steps": "3",
        "options": {"t": "cuda,nvtx", "gpu-metrics-device": "all"},
    }
    found["nsight preset"] = {"workers": "actor", "steps": "3", "options": {"preset": "rlinf"}}
    found["nsight controller"] = {"workers": "controller,actor", "steps": "3", "options": {"t": "nvtx"}}
    found["nsight own range"] = {
        "workers": "actor",
        "steps": "3",
        "options": {"capture-range-end": "repeat:7", "stop-on-exit": "false"},
    }
    return found


REQUESTS = _requests()


@pytest.fixture(autouse=True)
def sources(need: Any) -> None:
    need("upstream", "hydra", "omegaconf")


def compose(version: str, top: str, overrides: tuple[str, ...] = ()) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    folder = upstream.verl(version) / "verl" / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return compose(top, list(overrides))


@functools.cache
def base(version: str, top: str) -> Any:
    return compose(version, top)


def rendered(kind: str, dialect: str, fmt: str) -> Any:
    request = request_from_dict({"captures": [REQUESTS[kind]]})
    return trainers.get(dialect).render(request, fmt)


def words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text.replace("\\\n", " "), comments=True))


@pytest.mark.parametrize("version", upstream.VERL)
def test_every_request_composes_with_the_real_configurations(version: str) -> None:
    assert len(REQUESTS) == 22
    for number, kind in enumerate(REQUESTS):
        overrides = words(rendered(kind, DIALECT[version], "hydra").text)
        compose(version, TOPS[number % 2], overrides)


@pytest.mark.parametrize("version", upstream.VERL)
def test_the_yaml_sets_keys_that_the_real_configurations_have(version: str) -> None:
    from omegaconf import OmegaConf

    for top in TOPS:
        whole = OmegaConf.to_container(base(version, top), resolve=False)
        for kind in REQUESTS:
            fragment = OmegaConf.to_container(
                OmegaConf.create(rendered(kind, DIALECT[version], "yaml").text or "{}")
            )
            assert not list(_absent(fragment, whole)), (top, kind)


def _absent(part: Any, whole: Any, path: str = "") -> Any:
    """Paths of `part` that `whole` has not; nsys options are free."""
    for key, value in part.items() if isinstance(part, dict) else ():
        here = f"{path}.{key}" if path else key
        if "nsight_options" in here:
            continue
        if not isinstance(whole, dict) or key not in whole:
            yield here
        else:
            yield from _absent(value, whole[key], here)


@functools.cache
def classes(version: str) -> dict[str, Any]:
    """verl's own ProfilerConfig, tool configs and gate, executed from its sources."""
    root = upstream.verl(version) / "verl"
    if version == "v0.4.1":
        import dataclasses
        import typing

        space = upstream.definitions(
            root / "utils/debug/profile.py", "ProfilerConfig", dataclass=dataclasses.dataclass, **vars(typing)
        )
        space |= upstream.definitions(
            root / "utils/debug/nvtx_profile.py", "NsightSystemsProfiler", DistProfiler=object, **vars(typing)
        )
        return space
    package = ModuleType("verl")
    package.__path__ = [str(root)]
    base_config = upstream.module(root / "base_config.py", "verl.base_config", verl=package)
    made = vars(
        upstream.module(
            root / "utils/profiler/config.py",
            f"upstream_verl_config_{version}",
            verl=package,
            **{"verl.base_config": base_config},
        )
    )
    return dict(made)


def gate(version: str, config: Any, path: tuple[str, ...], rank: int) -> bool:
    """Whether verl's own code records this rank of a role in a profiled step."""
    from omegaconf import OmegaConf

    space = classes(version)
    profiler = OmegaConf.to_container(OmegaConf.select(config, ".".join(path)), resolve=True)
    profiler = {key: value for key, value in profiler.items() if not key.startswith("_")}
    made = space["ProfilerConfig"](**profiler)
    if version == "v0.4.1":
        return bool(space["NsightSystemsProfiler"](rank, made).this_rank)
    root = upstream.verl(version) / "verl" / "utils" / "profiler"
    if version == "v0.5.0":
        import typing

        nsight = upstream.definitions(root / "nvtx_profile.py", "NsightSystemsProfiler", DistProfiler=object,
                                      ProfilerConfig=space["ProfilerConfig"], **vars(typing))  # fmt: skip
        return bool(nsight["NsightSystemsProfiler"](rank, made).this_rank)
    import typing

    tool = (profiler.get("tool_config") or {}).get(profiler["tool"])
    tool_class = {
        "nsys": "NsightToolConfig",
        "torch": "TorchProfilerToolConfig",
        "torch_memory": "TorchMemoryToolConfig",
    }
    if tool is not None:
        tool = {key: value for key, value in tool.items() if not key.startswith("_")}
        tool = space[tool_class[profiler["tool"]]](**tool)
    quiet = space["ProfilerConfig"](**profiler | {"tool": None})
    found = upstream.definitions(
        root / "profile.py",
        "_NoOpProfiler",
        "DistProfiler",
        ProfilerConfig=space["ProfilerConfig"],
        **vars(typing),
    )
    made = found["DistProfiler"](rank, quiet, tool)
    return bool(made._this_rank and quiet.enable)


@pytest.mark.parametrize("version", upstream.VERL)
def test_verls_own_gate_opens_for_the_ranks_that_were_asked(version: str) -> None:
    scheme = SCHEMES[DIALECT[version]]
    for kind in ("nsight actor,rollout,ref", "nsight critic", "nsight *"):
        answer = rendered(kind, DIALECT[version], "hydra")
        config = compose(version, "ppo_trainer", words(answer.text))
        wanted = REQUESTS[kind]["workers"].split(",")
        for role, path in scheme.paths.items():
            if role == "env":
                continue
            on = role in wanted or wanted == ["*"]
            ranks = [rank for rank in range(4) if gate(version, config, path, rank)]
            assert ranks == ([0, 1] if on else []), (kind, role)


def test_torch_contents_pass_verls_own_checks() -> None:
    for kind in REQUESTS:
        if not kind.startswith("torch"):
            continue
        config = compose("b178a3cd5", "ppo_trainer", words(rendered(kind, "verl-0.8", "hydra").text))
        for role, path in SCHEMES["verl-0.8"].paths.items():
            if role != "env":
                gate("b178a3cd5", config, path, 0)


@pytest.mark.parametrize(("version", "name"), [
    ("0.4.1", "verl-0.4"), ("0.5.0", "verl-0.5"), ("0.6.1", "verl-0.6"), ("0.7.0", "verl-0.6"),
    ("0.8.0.dev", "verl-0.8"), ("0.9.1", "verl"), ("1.0", "verl"),
])  # fmt: skip
def test_the_installed_verl_decides_the_scheme(version: str, name: str) -> None:
    from rlprof_ops.trainers.verl import dialect as verl

    assert scheme_of_version(version) is SCHEMES[name]
    note = verl.framework("verl", installed=version).render(request_from_dict({"captures": []}), "hydra").text
    assert f"verl {version} is installed" in note


# The example scripts that set a profiler, as they stand.
def scripts() -> list[tuple[str, Path]]:
    return [
        (version, path)
        for version in upstream.VERL
        for path in sorted((upstream.verl(version) / "examples").rglob("*.sh"))
    ] if not upstream.missing() else []  # fmt: skip


@pytest.mark.parametrize(("version", "path"), scripts(), ids=lambda value: getattr(value, "name", value))
def test_every_example_script_goes_through_import_and_render(version: str, path: Path) -> None:
    from rlprof_ops.request import RequestError

    text = path.read_text()
    dialect = trainers.get(DIALECT[version])
    if "npu" in path.name:
        with pytest.raises(RequestError, match="npu is Ascend's"):
            dialect.import_(text, path.name)
        return
    imported = dialect.import_(text, path.name)
    assert imported.found and imported.request.captures, imported.notes
    again = dialect.import_(dialect.render(imported.request, "hydra").text, "again")
    if "torch_memory" in text:
        (capture,) = imported.request.captures
        assert (capture.backend, capture.workers, capture.ranks, str(capture.steps)) == (
            "memory", ("actor",), None, "1:",
        )  # fmt: skip
        rendered = dialect.render(imported.request, "hydra")
        assert rendered.losses == () and again.request == imported.request
        compose(version, "ppo_trainer", words(rendered.text))
        for other in ("ref", "critic"):  # narrower than what verl does: said
            narrow = replace(imported.request, captures=(replace(capture, workers=("actor", other)),))
            assert any("dumps a snapshot" in loss for loss in dialect.render(narrow, "hydra").losses)
        narrow = replace(imported.request, captures=(replace(capture, ranks=(0,)),))
        assert any("dumps a snapshot" in loss for loss in dialect.render(narrow, "hydra").losses)
        return
    assert _meaning(again.request) == _meaning(imported.request)
    assert all(capture.each == "phase" for capture in imported.request.captures)


def _meaning(request: Any) -> Any:
    return sorted((c.backend, c.workers, c.ranks, str(c.steps), c.each) for c in request.captures)
