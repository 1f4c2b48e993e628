"""ROLL's own `DPOPipeline.run` and `RLVRPipeline.run` with our adapter, its clusters and their workers: its
models and engines need GPUs, so they only take time here. They run in verl's environment.

The oracle of steps and phases is what ROLL logs of each step (`time/*`).
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.analyze.phase_names import canonical
from rlprof_ops.runtime.process.actor_labels import NewActor
from rlprof_ops.trainers import roll
from rlprof_ops.trainers.roll import adapter
from tests import upstream
from tests.trainers import environments, runs
from tests.trainers.local_job import LocalJob
from tests.trainers.own_log import CLASSES, heard, hold_reports, logged, same

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 900)]
HERE = Path(__file__).parent / "roll"
STEPS = 4
_PLATFORM = """
from types import SimpleNamespace

no = lambda: False
current_platform = SimpleNamespace(
    device_type="cpu", communication_backend="gloo", ray_device_key="CPU", is_available=no, is_npu=no
)
"""
# Modules that are not in the archive of ROLL's source, and packages that verl's environment has not.
ABSENT = {
    **dict.fromkeys(
        (
            *("imageio", "more_itertools", "roll/datasets", "roll/datasets/chat_template"),
            *("roll/datasets/collator", "roll/datasets/dataset", "roll/datasets/global_dataset"),
            *("roll/models", "roll/models/model_providers"),
        ),
        CLASSES,
    ),
    "roll/platforms": _PLATFORM,
}
# Timer in the loop -> what ROLL logs it as.
LOGGED = {
    "dpo": {"cal_ref_log_probs": "cal_ref_log_probs", "actor_train": "actor_train"},
    "rlvr": {
        "step_stop_server": "step_stop_server",
        "step_model_update": "step_model_update",
        "step_generate": "step_generate",
        "cal_ref_log_probs": "ref_log_probs_values",
        "cal_old_log_probs_values": "old_log_probs",
        "get_sample_level_mask": "get_sample_level_mask",
        "reward_postprocess": "reward_postprocess",
        "get_token_reward": "get_token_reward",
        "compute_advantage": "compute_advantage",
        "step_train": "step_train",
    },
}


def library(folder: Path) -> Path:
    """ROLL's modules with what is absent, to be found by Python."""
    if why := environments.lacking("verl"):
        pytest.skip(why)
    shutil.copytree(upstream.tree("roll") / "roll", folder / "roll")
    for name, text in ABSENT.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").write_text(text)
    return folder


def hold_against(
    own: dict[int, dict[str, Any]], told: dict[int, dict[str, Any]], names: dict[str, str]
) -> None:
    """Every phase takes what ROLL logs, and so does the step."""
    assert sorted(told) == sorted(own) == list(range(1, STEPS + 1))
    for number, step in told.items():
        mine: dict[str, float] = defaultdict(float)
        for name, begin, end, _ in step["phases"]:
            mine[name] += (end - begin) / 1e9
        times = {name.rpartition("time/")[2]: took for name, took in own[number]["times"].items()}
        assert set(mine) == set(names), number
        apart = {
            name: (mine[name], times[key]) for name, key in names.items() if not same(mine[name], times[key])
        }
        assert apart == {}, number
        # RLVR logs a step's total with the next step, DPO with its own.
        total = times["step_total"] if "cal_ref_log_probs" in times else next_total(own, number)
        if total and number > 1:  # the first one begins with the link to the job
            assert same((step["end_ns"] - step["begin_ns"]) / 1e9, total), number


def next_total(own: dict[int, dict[str, Any]], number: int) -> float | None:
    return own[number + 1]["times"]["time/step_total"] if number + 1 in own else None


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.nsys
@pytest.mark.parametrize(
    ("pipeline", "planned"),
    [
        ("dpo", {"actor_train": 2, "controller": 1, "reference": 1}),
        ("rlvr", {"actor_infer": 1, "actor_train": 2, "controller": 1}),
    ],
)
def test_a_job_has_rolls_steps_phases_roles_ranks_and_losses(
    pipeline: str, planned: dict[str, int], tmp_path: Path
):
    logs = str(tmp_path / "roll-logs")
    env = {"PYTHONPATH": f"{library(tmp_path / 'lib')}:{HERE}", "ROLL_LOG_DIR": logs}
    run = runs.trainer_run("verl", work=tmp_path, env=env)
    argv = [*run.argv[:2], str(HERE / "loop.py"), pipeline, str(STEPS)]
    knobs = {"RLPROF_STEPS": "3", "RLPROF_WORKERS": "*", "RLPROF_OPTIONS": '{"t": "nvtx"}'}

    job = LocalJob.take("verl", tmp_path / "job", STEPS, 900, env=env, argv=argv, **knobs)

    own = logged(job.output)
    hold_against(own, heard(job.run), LOGGED[pipeline])
    assert {step: row["loss"] for step, row in own.items()} == {
        n: n * (n + 1) / 2 for n in own
    }  # as without us
    hold_reports(job, planned)


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"CLUSTER_NAME": "actor_train", "RANK": "1"}, ("actor_train", 1)),
        ({"CLUSTER_NAME": "reward-math_rule", "RANK": "0"}, ("reward_math_rule", 0)),
        ({"RANK": "0"}, None),
        ({"CLUSTER_NAME": "actor_train"}, None),
    ],
)
def test_a_worker_is_called_as_its_cluster_calls_it(variables: dict[str, str], found: tuple[str, int] | None):
    module = "roll.pipeline.base_worker"
    assert adapter.role_of(NewActor("ActorWorker", module, "actor_train-1-G1", variables)) == found
    assert adapter.role_of(NewActor("ActorWorker", "mine", "actor_train-1-G1", variables)) is None


class Worker:
    """Of a class of the user's own."""

    __module__ = "roll.distributed.executor.worker"


class OwnWorker(Worker):
    __module__ = "mine"


def test_a_worker_of_the_users_own_class_is_rolls_too():
    found = adapter.role_of(NewActor("Own", "mine", "", {"CLUSTER_NAME": "a", "RANK": "0"}, OwnWorker))
    assert found == ("a", 0)


def test_the_reports_phases_and_the_steps_know_rolls_names(need):
    need("upstream")
    text = "".join(file.read_text() for file in (upstream.tree("roll") / "roll").rglob("*.py"))
    for phase, names in roll.PHASES.items():
        assert [canonical(name) for name in names] == [phase] * len(names)
        assert all(re.search(rf'Timer\((name=)?"{name}"|def {name}\(', text) for name in names)
    assert all(f'name="{name}"' in text for name in adapter._STEPS)
    for helper in adapter._HELPERS:
        assert f"class {helper.title().replace('_', '')}" in text, helper
