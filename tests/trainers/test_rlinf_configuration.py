"""RLinf's own `ClusterConfig` and placement beside our reading: its examples, and the profiling blocks of its
unit tests.

All examples are compared with recorded answers of RLinf; some are asked again in every run.
`python -m tests.trainers.test_rlinf_configuration` asks all and writes the record.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlprof_ops import trainers
from rlprof_ops.request import RequestError
from rlprof_ops.trainers.ranks_by_worker import world_of_trainer
from tests import upstream
from tests.trainers import environments

HERE = Path(__file__).parent / "rlinf"
RECORD = HERE / "examples.json"
RLINF = trainers.get("rlinf")
pytestmark = [pytest.mark.upstream, pytest.mark.timeout(300)]

# What RLinf refuses for a reason that is none of the worker count's, with the words of its refusal.
BROKEN = {
    "examples/embodiment/config/libero_spatial_dagger_openpi_lerobot.yaml": "'training_backend/fsdp'",
    "examples/embodiment/config/realworld_dual_franka_dagger_openpi.yaml": "must be within node_ranks [1, 2]",
    "examples/reasoning/config/math/qwen2.5-1.5b-reinpp-megatron.yaml": "Reward GPUs must be specified",
}


def ask(files: list[str], blocks: list[Any]) -> dict[str, Any]:
    """The answer of RLinf's own code, in its own environment."""
    done = subprocess.run(
        [str(environments.ensure("rlinf").python), "-P", "-W", "ignore", str(HERE / "real_configs.py"),
         str(upstream.tree("rlinf"))],
        input=json.dumps({"files": files, "blocks": blocks}), capture_output=True, text=True, timeout=280,
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}, check=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def examples() -> list[str]:
    root = upstream.tree("rlinf")
    return [str(path.relative_to(root)) for path in sorted((root / "examples").rglob("*.yaml"))]


@functools.cache
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


# ---- the examples


def again() -> list[str]:
    """Every twelfth example, and those that once were read wrong."""
    known = ("base_eval", "wideseek_r1/config/train", "calc_x", "megatron-dynamic", "2arms")
    names = examples()
    return [name for i, name in enumerate(names) if i % 12 == 0 or any(word in name for word in known)]


def test_the_record_is_what_rlinf_answers(need: Any) -> None:
    need("upstream")
    assert sorted(record()) == examples() and len(record()) == 332
    assert ask(again(), [])["files"] == {name: record()[name] for name in again()}


def ours(name: str, gpus: int) -> dict[str, int] | str:
    try:
        return world_of_trainer(RLINF, str(upstream.tree("rlinf") / name), gpus)
    except RequestError as error:
        return str(error)


def test_every_example_is_counted_as_rlinf_counts_it_or_refused_with_a_true_reason(need: Any) -> None:
    """RLinf launches the components that have a `group_name`; where no component has one, each is named."""
    need("upstream")
    counted, without, refused = 0, 0, []
    for name, row in record().items():
        if not row:
            assert "there is no cluster.component_placement" in str(ours(name, 8)), name
            without += 1
            continue
        if isinstance(row, str):
            assert BROKEN.get(name, "?") in row, (name, row)
            refused.append(name)
            continue
        for gpus in (2, 8):
            real, mine = row[str(gpus)], ours(name, gpus)
            if isinstance(real, dict):
                named = {row["groups"][part]: n for part, n in real.items() if part in row["groups"]}
                assert mine == (named or real), (name, gpus)
                counted += 1
            elif "multiple placements" in real:
                assert "placed twice, which RLinf refuses" in str(mine), name
            elif gpus == 8 and "must be within the available" not in real:
                assert BROKEN[name] in real
                refused.append(name)
    assert sorted(refused) == sorted(BROKEN)
    assert (counted, without) == (388, 110)


# ---- the profiling blocks of RLinf's unit tests (test_cluster_config.py), by the test that has them

NSIGHT: dict[str, Any] = {"backend": "nsight", "worker_groups": ["actor"]}
ROCPROF: dict[str, Any] = {"backend": "rocprof_sys", "worker_groups": ["actor"]}
BLOCKS: dict[str, Any] = {
    "cluster_config_parses_profiling_settings": NSIGHT | {
        "worker_groups": ["actor", "rollout"],
        "options": {"t": "cuda,cudnn,cublas,nvtx", "capture-range": "nvtx", "stop-on-range-end": True}},
    "cluster_config_parses_disabled_profiling_settings": NSIGHT | {
        "enabled": False, "options": {"t": "cuda,cudnn,cublas,nvtx"}},
    "cluster_config_profiling_rejects_duplicate_range_end_options": NSIGHT | {
        "options": {"stop-on-range-end": True, "capture-range-end": "stop"}},
    "cluster_config_profiling_options_must_be_mapping": NSIGHT | {"options": ["BAD"]},
    "cluster_config_parses_profiling_flags": NSIGHT | {"flags": ["python-backtrace"]},
    "cluster_config_rejects_duplicate_profiling_flag_and_option": NSIGHT | {
        "flags": ["python-backtrace"], "options": {"python-backtrace": "cuda"}},
    "cluster_config_profiling_requires_backend": {"worker_groups": ["actor"]},
    "cluster_config_profiling_rejects_unknown_backend": {"backend": "unknown_backend"},
    "nsight_default_preset_enables_cpu_sampling_and_cuda_backtrace": "profile/default.yaml",
    "nsight_to_cli_tokens_supports_flags": NSIGHT | {"flags": ["python-backtrace"], "steps": [1]},
    "cluster_config_parses_profiling_steps": NSIGHT | {"steps": [5, 10, 20]},
    "nsight_steps_auto_sets_capture_range": NSIGHT | {"steps": [5]},
    "nsight_steps_respects_explicit_capture_range": NSIGHT | {
        "steps": [5], "options": {"capture-range": "nvtx", "capture-range-end": "none"}},
    "nsight_steps_none_does_not_touch_options": NSIGHT | {"steps": None, "options": {"t": "cuda"}},
    "nsight_rejects_negative_steps": NSIGHT | {"steps": [-1]},
    "nsight_should_profile_step_matches_configured_steps": NSIGHT | {"steps": [5, 10]},
    "nsight_should_profile_step_profiles_all_steps_when_steps_none": NSIGHT | {"steps": None},
    "nsight_should_profile_step_returns_false_when_disabled": NSIGHT | {"enabled": False, "steps": [5]},
    "modify_profile_context_skips_non_matching_group": NSIGHT | {"worker_groups": ["rollout"]},
    "modify_profile_context_skips_disabled_config": NSIGHT | {"enabled": False},
    "rocprof_sys_config_defaults": {"backend": "rocprof_sys"},
    "rocprof_sys_to_cli_tokens_no_args": ROCPROF,
    "rocprof_sys_to_cli_tokens_single_char_arg": ROCPROF | {"args": {"F": "true"}},
    "rocprof_sys_to_cli_tokens_multi_char_arg": ROCPROF | {"args": {"output-format": "json"}},
    "rocprof_sys_to_cli_tokens_mixed_args": ROCPROF | {"args": {"F": "true", "output-format": "json"}},
    "rocprof_sys_rejects_non_dict_args": ROCPROF | {"args": ["bad"]},
    "rocprof_sys_rejects_non_dict_env": ROCPROF | {"env": ["bad"]},
    "rocprof_sys_cluster_config_parses": ROCPROF | {
        "args": {"F": "true"}, "env": {"ROCPROFSYS_OUTPUT_PATH": "/tmp/traces"}},
}  # fmt: skip
# Ours alone: what the code says beyond its tests.
OWN: dict[str, Any] = {
    "one group": NSIGHT | {"worker_groups": "ActorGroup"},
    "whatever the case": NSIGHT | {"worker_groups": ["ACTORGROUP"]},
    "all": NSIGHT | {"worker_groups": "all", "steps": [0]},
    "all among others": NSIGHT | {"worker_groups": ["EnvGroup", "ALL"]},
    "no group": NSIGHT | {"worker_groups": None},
    "no step": NSIGHT | {"steps": []},
    "adjacent steps": NSIGHT | {"steps": [3, 4, 5]},
    "the same step twice": NSIGHT | {"steps": [3, 3]},
    "stop-on-range-end off": NSIGHT | {"steps": [3], "options": {"stop-on-range-end": "off"}},
    "stop-on-range-end 1": NSIGHT | {"steps": [3], "options": {"stop-on-range-end": 1}},
    "stop-on-range-end of nsys": NSIGHT | {"steps": [3, 7], "options": {"stop-on-range-end": "repeat:2"}},
    "a truth as option": NSIGHT | {"options": {"stop-on-exit": True}},
    "o and output": NSIGHT | {"options": {"o": "/a", "output": "/b"}},
    "an empty flag": NSIGHT | {"flags": [""]},
    "an unknown key": NSIGHT | {"worker_group": "ActorGroup"},
    "options of the other backend": ROCPROF | {"options": {"t": "cuda"}},
    "steps of the other backend": ROCPROF | {"steps": [2, 5], "env": {"A": "1"}},
}


def block(name: str) -> Any:
    found = (BLOCKS | OWN)[name]
    if isinstance(found, str):
        path = upstream.tree("rlinf") / "examples/embodiment/config/profile" / Path(found).name
        found = yaml.safe_load(path.read_text())
    return found


def mine(name: str) -> Any:
    text = json.dumps({"cluster": {"profiling": block(name)}})
    try:
        return RLINF.import_(text, name).request
    except RequestError as error:
        return str(error)


def rendered(name: str) -> Any:
    """The block that our rendering of the imported request writes; None where nothing is."""
    request = mine(name)
    if isinstance(request, str) or not request.captures:
        return None
    return yaml.safe_load(RLINF.render(request, "yaml").text)["cluster"]["profiling"]


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> dict[str, tuple[Any, Any]]:
    """By name: RLinf's answer to the block, and to the block that we render from our reading of it."""
    names = [*BLOCKS, *OWN]
    blocks = [block(name) for name in names]
    told = ask([], [*blocks, *(rendered(name) or {"backend": "nsight"} for name in names)])["blocks"]
    return {name: (told[i], told[i + len(names)]) for i, name in enumerate(names)}


GROUPS = ("ActorGroup", "actorgroup", "RolloutGroup", "EnvGroup", "actor", "rollout", "Other")


@pytest.mark.parametrize("name", [*BLOCKS, *OWN])
def test_a_block_is_read_as_rlinf_reads_it(answers: dict[str, tuple[Any, Any]], name: str) -> None:
    """Refused by both, or the same groups, steps, words for the tool and variables; rendered again, RLinf
    reads the same, but for `capture-range-end` of several steps, where its own loses all windows but one.
    """
    real, back = answers[name]
    request = mine(name)
    if isinstance(real, str) or isinstance(request, str):
        assert isinstance(request, str) and isinstance(real, str), (real, request)
        return
    if not block(name).get("worker_groups"):
        assert request.captures == () and real["groups"] == real["wrapped"] == []
        return
    [spec] = request.captures
    assert request.enabled is real["enabled"]
    matched = [g for g in GROUPS if any(w == "*" or w.lower() == g.lower() for w in spec.workers)]
    assert real["groups"] == real["wrapped"] == (matched if request.enabled else [])
    steps = [step for step in range(32) if any(step + 1 in run for run in spec.steps.runs)]
    assert real["steps"] == (steps if request.enabled else [])
    if spec.backend == "rocprof_sys":
        assert dict(spec.options) == (block(name).get("args") or {})
        assert dict(spec.env) == (real["env"] or {})
    assert {**back, "words": ends(back["words"])} == {**real, "words": ends(real["words"])}
    several = len(set(steps)) > 1 and len(steps) < 32
    computed = [word for word in back["words"] if word.startswith("--capture-range-end=repeat")]
    assert bool(computed) == (several and spec.backend == "nsight")


def ends(words: list[str]) -> list[str]:
    return sorted(word for word in words if not word.startswith("--capture-range-end=repeat:")
                  and word != "--capture-range-end=stop")  # fmt: skip


if __name__ == "__main__":
    rows = ask(examples(), [])["files"]
    lines = (f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in rows.items())
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
