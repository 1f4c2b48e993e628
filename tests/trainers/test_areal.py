"""AReaL's own `PPOTrainer.train` with our adapter, its schedulers and their workers: models and engines need
GPUs, so they only take time here.

The oracle of phases is what AReaL logs of each step (`timeperf/*`), that of steps the trace of its tracer.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.analyze.phase_names import canonical
from rlprof_ops.analyze.whole_run.sample_groups import staleness_of
from rlprof_ops.runtime.process.actor_labels import NewActor
from rlprof_ops.trainers import areal
from rlprof_ops.trainers.areal import adapter
from tests import upstream
from tests.trainers import environments, runs
from tests.trainers.local_job import LocalJob
from tests.trainers.own_log import CLASSES, heard, hold_reports, logged, same

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 900)]
HERE = Path(__file__).parent / "areal"
STEPS = 4
EMPTY = "swanlab,trackio,wandb,tensorboardX,math_verify,openai,aiofiles,PIL,einops"
# Modules that are not in the archive of AReaL's source, and one that is built for its Python alone.
ABSENT = {
    "areal/version.py": "__version__, version_info = '0', None",
    "areal/engine/__init__.py": CLASSES,
    "areal/engine/fsdp_utils/__init__.py": "",
    "areal/engine/fsdp_utils/attn_impl.py": (
        "BUILTIN_ATTN_IMPLS, is_valid_attn_impl, get_attn_impl_validation_error = (), bool, str"
    ),
    "areal/experimental/__init__.py": "",
    "areal/experimental/inference_service/__init__.py": "",
    "areal/experimental/inference_service/controller/__init__.py": "",
    "areal/experimental/inference_service/controller/controller.py": CLASSES,
    "areal/experimental/openai/__init__.py": CLASSES,
    "areal/experimental/openai/types.py": CLASSES,
    "areal/experimental/openai/proxy/__init__.py": "",
    "areal/experimental/openai/proxy/proxy_gateway.py": CLASSES,
    "areal/experimental/training_service/__init__.py": "",
    "areal/experimental/training_service/controller/__init__.py": "",
    "areal/experimental/training_service/controller/controller.py": CLASSES,
    "numba.py": "def njit(function):\n    return function",
}


def library(folder: Path) -> Path:
    """AReaL's modules with what is absent, to be found by Python."""
    for name in ("areal", "skyrl"):  # they are run in SkyRL's environment
        if why := environments.lacking(name):
            pytest.skip(why)
    shutil.copytree(upstream.tree("areal") / "areal", folder / "areal")
    for name, text in ABSENT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def path(lib: Path) -> str:
    [packages] = environments.ensure("areal").folder.glob("venv/lib/python3*/site-packages")
    return f"{lib}:{HERE}:{packages}"


def turns(work: Path) -> dict[int, tuple[float, float]]:
    """Begin and end of each turn of the loop in AReaL's trace: its first scope, and its last one."""
    [file] = work.rglob("master/traces-r0.jsonl")
    rows = [row for row in map(json.loads, file.open()) if row["name"].startswith("train.")]
    begins = [row["ts"] for row in rows if row["name"] == "train.rollout_onload"]
    ends = [row["ts"] + row["dur"] for row in rows if row["name"] == "train.log_stats"]
    return {n: (begin / 1e6, end / 1e6) for n, (begin, end) in enumerate(zip(begins, ends, strict=True), 1)}


def hold_turns(told: dict[int, dict[str, Any]], own: dict[int, tuple[float, float]]) -> None:
    """Every step begins with its turn, and ends between its last scope and the next turn."""
    assert sorted(told) == sorted(own)
    moved = told[1]["begin_ns"] / 1e9 - own[1][0]
    for number, (begin, end) in own.items():
        mine, its_end = (told[number][key] / 1e9 - moved for key in ("begin_ns", "end_ns"))
        assert abs(mine - begin) < 0.005, number
        assert end - 0.005 < its_end < own.get(number + 1, (end + 0.5, 0))[0] + 0.005, number


def hold_against(own: dict[int, dict[str, Any]], told: dict[int, dict[str, Any]]) -> None:
    """Every phase takes what AReaL logs, and what an episode times is none."""
    assert sorted(told) == sorted(own) == list(range(1, STEPS + 1))
    for number, step in told.items():
        mine: dict[str, list[float]] = defaultdict(list)
        for name, begin, end, _ in step["phases"]:
            mine[name].append((end - begin) / 1e9)
        timings = {name: took for name, took in own[number]["timings"].items() if "episode" not in name}
        assert set(mine) == set(timings), number
        apart = {
            name: (mine[name], took)
            for name, (took, count) in timings.items()
            if len(mine[name]) != count or not same(sum(mine[name]) / count, took)
        }
        assert apart == {}, number


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.nsys
@pytest.mark.parametrize(
    ("scheduler", "workers", "planned"),
    [
        ("local", "controller", {"controller": 1}),
        ("local", "*", {"actor": 2, "controller": 1, "ref": 1}),
        ("ray", "*", {"actor": 2, "controller": 1, "ref": 1}),
    ],
)
def test_a_job_has_areals_steps_phases_roles_ranks_and_losses(
    scheduler: str, workers: str, planned: dict[str, int], tmp_path: Path
):
    # AReaL kills a local worker with all of its children, nsys among them, 3 s after it told it to end.
    env = {"PYTHONPATH": path(library(tmp_path / "lib")), "EMPTY_PACKAGES": EMPTY, "LINGER_S": "20"}
    run = runs.trainer_run("skyrl", work=tmp_path, env=env)
    argv = [*run.argv[:2], str(HERE / "loop.py"), str(STEPS), scheduler]
    knobs = {"RLPROF_STEPS": "3", "RLPROF_WORKERS": workers, "RLPROF_OPTIONS": '{"t": "nvtx"}'}

    job = LocalJob.take("skyrl", tmp_path / "job", STEPS, 600, env=env, argv=argv, **knobs)

    own, told = logged(job.output), heard(job.run)
    hold_against(own, told)
    hold_turns(told, turns(tmp_path))
    assert {step: row["loss"] for step, row in own.items()} == {n: 64 * n - 24 for n in own}  # as without us
    hold_reports(job, planned)
    if scheduler == "ray":
        hold_staleness(own, job.run)


def hold_staleness(own: dict[int, dict[str, Any]], run: Path) -> None:
    """Of every sample the versions that the loop gave it, each counted by one of the two ranks."""
    found = staleness_of(run)
    assert (
        found is not None
        and found.unit == "samples"
        and found.samples == sum(len(row["made"]) for row in own.values())
    )
    for row in found.steps:
        made = own[row.step]["made"]
        behind = [row.step - 1 - last for _, last in made]
        assert (row.samples, row.least, row.most) == (len(made), min(behind), max(behind)), (row, made)
        assert row.mixed == sum(first != last for first, last in made)
        assert row.mean == pytest.approx(sum(behind) / len(made), abs=0.001)
    assert found.most > 0, "it has a batch ahead"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("actor/1", ("actor", 1)),
        ("eval-rollout/0", ("eval_rollout", 0)),
        ("storage", None),
        ("a/b", None),
    ],
)
def test_a_worker_is_called_as_the_scheduler_calls_it(name: str, found: tuple[str, int] | None):
    assert adapter.role_of(NewActor("RayRPCServer", "areal.infra.rpc.ray_rpc_server", name, {})) == found
    assert adapter.role_of(NewActor("RayRPCServer", "mine", name, {})) is None


def test_the_reports_phases_know_areals_names(need):
    need("upstream")
    text = "".join(file.read_text() for file in (upstream.tree("areal") / "areal" / "trainer").glob("*.py"))
    for phase, names in areal.PHASES.items():
        assert [canonical(name) for name in names] == [phase] * len(names)
        assert all(f'record_timing("{name}")' in text for name in names)
