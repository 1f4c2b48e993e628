"""Which request a trainer of which version takes: rendered, accepted by its own parser, gated by its own
code,
read back. The table is in docs/frameworks.md; `python -m tests.dialects.test_acceptance` writes it.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import upstream
from tests.dialects import test_verl_upstream as real_verl

from rlprof_ops import trainers
from rlprof_ops.request import RequestError, request_from_dict

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
BEGIN, END = "<!-- acceptance table: made by tests/dialects/test_acceptance.py -->", "<!-- end -->"
pytestmark = pytest.mark.upstream

KINDS: dict[str, dict[str, Any]] = {
    "nsight, whole steps, all ranks": {"steps": "3:5"},
    "nsight, ranks 0 and 1": {"steps": "3:5", "ranks": [0, 1]},
    "nsight, steps with a gap": {"steps": "3,5"},
    "nsight, each phase": {"steps": "3:5", "each": "phase"},
    "nsight, options of a preset": {"steps": "3", "options": {"preset": "nemo_rl"}},
    "torch, each phase": {"backend": "torch", "steps": "3", "each": "phase"},
    "torch, from step 1": {"backend": "torch", "steps": "1:3"},
    "memory": {"backend": "memory", "steps": "3"},
    "rocprof_sys": {"backend": "rocprof_sys", "steps": "3"},
}
VERL = {
    "v0.4.1": "verl-0.4",
    "v0.5.0": "verl-0.5",
    "v0.6.1": "verl-0.6",
    "v0.7.0": "verl-0.6",
    "b178a3cd5": "verl-0.8",
}


def answer(dialect: str, kind: str, worker: str, fmt: str) -> tuple[Any, Any]:
    request = request_from_dict({"captures": [{"workers": worker} | KINDS[kind]]})
    return request, trainers.get(dialect).render(request, fmt)


def accepts_verl(version: str) -> Callable[[Any, Any], bool]:
    """Hydra composes it with verl's configuration, and its own class records exactly the asked ranks."""

    def check(request: Any, rendered: Any) -> bool:
        from omegaconf import OmegaConf

        config = real_verl.compose(version, "ppo_trainer", real_verl.words(rendered.text))
        (spec,) = request.captures
        asked = [3, 4] if str(spec.steps) == "3:5" else [1, 2] if str(spec.steps) == "1:3" else None
        asked = asked or [int(step) for step in str(spec.steps).split(",")]
        for place in ("global_profiler.steps", "trainer.profile_steps"):
            steps = OmegaConf.select(config, place)
            if steps is not None:
                assert list(steps) == asked
        path = frameworks_path(version)
        ranks = [rank for rank in range(4) if real_verl.gate(version, config, path, rank)]
        return ranks == [rank for rank in range(4) if spec.ranks is None or rank in spec.ranks]

    return check


def frameworks_path(version: str) -> tuple[str, ...]:
    from rlprof_ops.trainers.verl.schemes import SCHEMES

    return SCHEMES[VERL[version]].paths["actor"]


PACKAGED = "verl 0.9.1"


def accepts_the_packaged_verl(kind: str, request: Any) -> bool:
    """verl's own parser takes it, and its own DistProfiler records the asked steps, ranks, mode and tool."""
    from tests.trainers.test_verl_configuration import told_by_verl

    told = told_by_verl()[kind]
    (spec,) = request.captures
    ranks = list(range(4)) if spec.ranks is None else list(spec.ranks)
    tool = {"nsight": "NsightSystemsProfiler", "torch": "Profiler", "memory": "TorchMemoryProfiler"}
    assert not isinstance(told, str), told
    assert told["steps"] == [step for step in range(1, 13) if any(step in run for run in spec.steps.runs)]
    assert told["roles"]["actor"] == {
        "ranks": ranks, "discrete": spec.each == "phase", "tool": tool[spec.backend],
    }  # fmt: skip
    return all(role == "actor" or not row["ranks"] for role, row in told["roles"].items())


def accepts_nemo_rl(request: Any, rendered: Any) -> bool:
    """NeMo RL's own gate starts and stops with the asked steps, and its own matcher takes the worker."""
    (spec,) = request.captures
    env = dict(word.partition("=")[::2] for word in shlex.split(rendered.text, comments=True) if "=" in word)
    if spec.backend != "nsight":
        return "NRL_TORCH_PROFILE_STEP_RANGE" in env
    calls: list[str] = []
    assert gates_of_nemo_rl(env, range(1, 8), calls) == [3, 4] if str(spec.steps) == "3:5" else True
    config = nsight_config_of_nemo_rl(env, "dtensor_policy_worker")
    return bool(config) and set(spec.options) - {"preset"} <= set(config["nsight"])


def gates_of_nemo_rl(env: dict[str, str], steps: Any, calls: list[str]) -> list[int]:
    """The steps that `maybe_gpu_profile_step` of its sources records."""

    class Policy:
        on = False

        def start_gpu_profiling(self) -> None:
            calls.append("start")
            self.on = True

        def stop_gpu_profiling(self) -> None:
            calls.append("stop")
            self.on = False

    quiet = type(
        "Quiet", (), {"print": staticmethod(lambda *_: None), "register": staticmethod(lambda *_: None)}
    )
    space = upstream.definitions(
        upstream.tree("nemo_rl") / "nemo_rl/utils/nsys.py", "maybe_gpu_profile_step",
        rich=quiet, atexit=quiet,
        NRL_NSYS_WORKER_PATTERNS=env.get("NRL_NSYS_WORKER_PATTERNS", ""),
        NRL_NSYS_PROFILE_STEP_RANGE=env.get("NRL_NSYS_PROFILE_STEP_RANGE", ""),
        ProfilablePolicy=object,
    )  # fmt: skip
    policy, recorded = Policy(), []
    for step in steps:
        space["maybe_gpu_profile_step"](policy, step)
        if policy.on:
            recorded.append(step)
    return recorded


def nsight_config_of_nemo_rl(env: dict[str, str], worker: str) -> dict[str, Any]:
    import fnmatch
    import logging
    import typing

    space = upstream.definitions(
        upstream.tree("nemo_rl") / "nemo_rl/distributed/worker_group_utils.py",
        "get_nsight_config_if_pattern_matches", fnmatch=fnmatch, logging=logging, Any=typing.Any,
        NRL_NSYS_WORKER_PATTERNS=env.get("NRL_NSYS_WORKER_PATTERNS", ""),
        NRL_NSYS_PROFILE_STEP_RANGE=env.get("NRL_NSYS_PROFILE_STEP_RANGE", ""),
        NRL_NSYS_EXTRA_OPTIONS=json.loads(env.get("NRL_NSYS_EXTRA_OPTIONS") or "{}"),
    )  # fmt: skip
    return dict(space["get_nsight_config_if_pattern_matches"](worker))


def accepts_rlinf(request: Any, rendered: Any) -> bool:
    """RLinf's own ProfileConfig takes the block, its own predicates the steps and the group."""
    import dataclasses
    import typing

    import yaml

    block = (yaml.safe_load(rendered.text) or {}).get("cluster", {}).get("profiling")
    if block is None:
        return (yaml.safe_load(rendered.text) or {})["actor"]["megatron"]["use_profiler"] is True
    context = {
        "dataclass": dataclasses.dataclass,
        "field": dataclasses.field,
        "ListConfig": list,
        **vars(typing),
    }
    space = upstream.definitions(
        upstream.tree("rlinf") / "rlinf/scheduler/hardware/accelerators/accelerator.py",
        "ProfileConfig",
        **context,
    )
    fields = {f.name for f in dataclasses.fields(space["ProfileConfig"])}
    config = space["ProfileConfig"](**{key: value for key, value in block.items() if key in fields})
    taken = [step + 1 for step in range(8) if config.should_profile_step(step)]
    (spec,) = request.captures
    wanted = [step for step in range(1, 9) if any(step in run for run in spec.steps.runs)]
    return taken == wanted


TRAINERS: dict[str, tuple[str, str, str, Callable[[Any, Any], bool]]] = (
    {
        "NeMo RL 7ea279abf": ("nemo_rl", "dtensor_policy_worker", "env", accepts_nemo_rl),
        "RLinf a3816b596": ("rlinf", "ActorGroup", "yaml", accepts_rlinf),
    }
    | {
        f"verl {version}": (
            name,
            "actor,rollout,ref" if name == "verl-0.5" else "actor",
            "hydra",
            accepts_verl(version),
        )
        for version, name in VERL.items()
    }
    | {PACKAGED: ("verl", "actor", "hydra", lambda request, rendered: True)}
)


def cell(trainer: str, kind: str) -> str:
    """`yes` when it is rendered whole, accepted, gated right and read back the same; else what is lost.

    What the trainer records unasked is said by a note.
    """
    dialect, worker, fmt, accepted = TRAINERS[trainer]
    request, rendered = answer(dialect, kind, worker, fmt)
    again = trainers.get(dialect).import_(rendered.text, "again").request if rendered.text.strip() else None
    if rendered.losses:
        return "refused: " + _short(rendered.losses[0])
    if trainer == PACKAGED:
        assert accepts_the_packaged_verl(kind, request)
    assert accepted(request, rendered), (trainer, kind)
    assert again is not None
    unasked = (
        {"controller"} if any("records its controller too" in note for note in rendered.notes) else set()
    )
    same = [
        (c.backend, tuple(w for w in c.workers if w not in unasked), c.ranks, str(c.steps), c.each)
        for c in again.captures
    ]
    assert same == [(c.backend, c.workers, c.ranks, str(c.steps), c.each) for c in request.captures], (
        trainer,
        kind,
    )
    return "yes"


def _short(loss: str) -> str:
    text = re.sub(r"^capture 1:? ?", "", loss)
    return re.split(r"[;:(,]", text)[0].strip()[:60].replace("|", "/")


def table() -> str:
    rows = [f"| request | {' | '.join(TRAINERS)} |", f"|---{'|---' * len(TRAINERS)}|"]
    for kind in KINDS:
        rows.append(f"| {kind} | {' | '.join(cell(trainer, kind) for trainer in TRAINERS)} |")
    return "\n".join(rows)


def column_of_the_page(trainer: str) -> list[str]:
    rows = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    cells = [[word.strip() for word in row.strip("|").split("|")] for row in rows]
    assert cells[0][1:] == list(TRAINERS) and [row[0] for row in cells[2:]] == list(KINDS)
    return [row[1 + list(TRAINERS).index(trainer)] for row in cells[2:]]


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if name != PACKAGED])
def test_the_table_of_the_page_is_what_the_trainers_do(trainer: str, need: Any) -> None:
    """The column of the packaged verl is checked where its environment is (trainers)."""
    need("hydra", "omegaconf")
    assert [cell(trainer, kind) for kind in KINDS] == column_of_the_page(trainer)


@pytest.mark.parametrize(
    ("given", "steps"),
    [("3:5", [3, 4]), ("1:2", [1]), ("7:9", [7]), (" 2:4 ", [2, 3])],
)
def test_nemo_rls_gate_is_ours(given: str, steps: list[int]) -> None:
    """Its test_nsys.py in meaning: start once, no second start, stop at the exclusive end, also with
    spaces.
    """
    env = {"NRL_NSYS_WORKER_PATTERNS": "*policy*", "NRL_NSYS_PROFILE_STEP_RANGE": given}
    calls: list[str] = []
    assert gates_of_nemo_rl(env, range(1, 8), calls) == steps
    assert calls in (["start", "stop"], ["start"])
    request = (
        trainers.get("nemo_rl")
        .import_(f"NRL_NSYS_WORKER_PATTERNS='*policy*' NRL_NSYS_PROFILE_STEP_RANGE='{given}'", "test")
        .request
    )
    ours = [step for step in range(1, 8) if any(step in run for run in request.captures[0].steps.runs)]
    assert ours == steps


def test_nemo_rls_documented_launch_lines_are_read() -> None:
    """Every bash block of docs/nsys-profiling.md that sets both variables."""
    text = (upstream.tree("nemo_rl") / "docs" / "nsys-profiling.md").read_text()
    blocks = [b for b in re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL) if "STEP_RANGE=" in b]
    assert len(blocks) >= 3
    for block in blocks:
        if "WORKER_PATTERNS=" not in block:  # one of the two alone, as NeMo RL refuses it too
            with pytest.raises(RequestError, match="set both or neither"):
                trainers.get("nemo_rl").import_(block, "nsys-profiling.md")
            continue
        imported = trainers.get("nemo_rl").import_(block, "nsys-profiling.md")
        (capture,) = imported.request.captures
        again = trainers.get("nemo_rl").render(imported.request, "env")
        reread = trainers.get("nemo_rl").import_(again.text, "again").request
        assert reread.captures == (capture,), block


def test_rlinfs_preset_is_its_file() -> None:
    """The one example of RLinf that has profiling on, read as it stands and as a preset; rendered and read
    back.
    """
    import yaml

    from rlprof_ops.trainers.rlinf.rlinf_names import PRESETS

    path = upstream.tree("rlinf") / "examples/embodiment/config/profile/default.yaml"
    block = yaml.safe_load(path.read_text())
    ours = PRESETS["profile/default"]
    assert {key: block[key] for key in ("backend", "worker_groups", "options", "flags")} == {
        key: ours[key] for key in ("backend", "worker_groups", "options", "flags")
    }
    rlinf = trainers.get("rlinf")
    direct = rlinf.import_(json.dumps({"cluster": {"profiling": block}}), "file").request
    preset = rlinf.import_("defaults:\n- profile/default@cluster.profiling\n", "preset").request
    assert direct.captures == preset.captures
    again = rlinf.import_(rlinf.render(direct, "yaml").text, "again").request
    assert again.captures == direct.captures


if __name__ == "__main__":
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")
    sys.exit(0)
