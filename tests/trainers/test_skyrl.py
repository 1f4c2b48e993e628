"""SkyRL's own trainers with our adapter: models and engines need GPUs, so they only take time here.

The oracle of times is what SkyRL logs of each step (`timing/*`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.analyze.phase_names import canonical
from rlprof_ops.analyze.whole_run.sample_groups import staleness_of
from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.job.knobs import python_path
from rlprof_ops.trainers import skyrl
from tests.trainers import environments, runs
from tests.trainers.local_job import LocalJob
from tests.trainers.own_log import heard, same

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 600)]
STEPS = 4


def logged(output: str) -> dict[int, dict[str, Any]]:
    """What SkyRL logged of each step: its timings and its loss."""
    lines = re.findall(r'\{"step": .*\}', output)
    return {row["step"]: row for row in map(json.loads, lines)}


def hold_against(own: dict[int, dict[str, Any]], told: dict[int, dict[str, Any]], *others: str) -> None:
    """Every step and every phase takes what SkyRL logs; `others` are timers of another coroutine."""
    assert sorted(told) == sorted(own) == list(range(1, STEPS + 1))
    for number, step in told.items():
        mine: dict[str, float] = defaultdict(float)
        for name, begin, end, _ in step["phases"]:
            mine[name] += (end - begin) / 1e9
        mine["step"] = (step["end_ns"] - step["begin_ns"]) / 1e9
        timings = {name: took for name, took in own[number]["timings"].items() if name not in others}
        assert set(mine) == set(timings), number
        apart = {name: (mine[name], took) for name, took in timings.items() if not same(mine[name], took)}
        assert apart == {}, number


def environment() -> None:
    if why := environments.lacking("skyrl"):
        pytest.skip(why)


def run_alone(which: str, folder: Path, source: Path | None = None) -> tuple[str, str]:
    """An asynchronous trainer in one process, with SkyRL from `source`: what it prints, what is said."""
    environment()
    run = runs.trainer_run("skyrl", work=folder, steps=STEPS, overrides=[which])
    path = python_path(str(source or run.env["PYTHONPATH"]))
    asked = {"RLPROF_NODE_DIR": str(folder), "RLPROF_STEPS": "2", "RLPROF_WORKERS": "policy_worker"}
    done = subprocess.run(
        [*run.argv[:2], *run.argv[run.argv.index("--") + 3 :]],
        env={**run.environment(), **asked, "PYTHONPATH": path},
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("trained\n"), done.stderr[-4000:]
    return done.stdout, done.stderr


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.nsys
def test_a_job_has_skyrls_steps_phases_roles_ranks_and_losses(tmp_path: Path):
    environment()
    knobs = {"RLPROF_STEPS": "3", "RLPROF_WORKERS": "*", "RLPROF_OPTIONS": '{"t": "nvtx"}'}

    job = LocalJob.take("skyrl", tmp_path / "job", STEPS, 900, ["sync"], **knobs)

    own, told = logged(job.output), heard(job.run)
    hold_against(own, told)
    assert [name for name, *_ in told[2]["phases"]].count("generate") == 2  # its first attempt was too small
    manifest = Manifest.load(job.run)
    assert manifest.world == {"controller": 1, "inference_engine": 1, "policy_worker": 2}
    # No profiler starts a task; on a busy machine nsys itself fails to start a program now and then.
    lost = [
        each
        for each in manifest.captures
        if each.state != "ok"
        and each.worker != "controller"
        and "before the program began" not in each.reason
    ]
    planned = {(each.worker, each.rank) for each in manifest.captures}
    assert {("policy_worker", 0), ("policy_worker", 1), ("inference_engine", 0)} <= planned
    assert lost == [], job.output[-4000:]

    alone = runs.trainer_run("skyrl", work=tmp_path, steps=STEPS)
    done = subprocess.run(
        alone.argv, env=alone.environment(), cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    losses = {step: row["loss"] for step, row in own.items()}
    assert losses == {step: row["loss"] for step, row in logged(done.stdout).items()}
    assert None not in losses.values() and len(set(losses.values())) == STEPS


@pytest.mark.parametrize("which", ["one_step_off", "fully_async"])
def test_what_another_coroutine_times_is_no_phase_of_the_step(which: str, tmp_path: Path):
    stdout, _ = run_alone(which, tmp_path)

    told = heard(tmp_path)
    hold_against(logged(stdout), told, "generate")
    depths = [{name: depth for name, *_, depth in step["phases"]} for step in told.values()]
    outer = 1 if which == "fully_async" else 0  # inside of `run_training`
    assert [phases["policy_train"] for phases in depths] == [outer + 1] * STEPS  # in a thread that is awaited
    assert [phases["sync_weights"] for phases in depths] == [0] * STEPS


def test_prompt_groups_are_as_old_as_skyrl_counts_them(tmp_path: Path):
    folder = tmp_path / "nodes" / "n0"
    folder.mkdir(parents=True)
    stdout, _ = run_alone("fully_async", folder)
    said = [[int(word) for word in line.split()[1:]] for line in stdout.splitlines() if "behind:" in line]
    found = staleness_of(tmp_path)
    assert found is not None and found.unit == "prompt groups"
    rows = [[row.step, row.samples, row.least, row.most] for row in found.steps]
    assert rows == [[step, len(behind), min(behind), max(behind)] for step, *behind in said]
    assert len(rows) == STEPS and found.most > 0


def test_a_timer_of_another_shape_is_a_line_and_skyrl_trains(tmp_path: Path):
    environment()
    shutil.copytree(environments.ensure("skyrl").source / "skyrl", tmp_path / "lib" / "skyrl")
    utils = tmp_path / "lib" / "skyrl" / "train" / "utils" / "utils.py"
    utils.write_text(utils.read_text().replace("self.message", "self.label"))

    stdout, stderr = run_alone("fully_async", tmp_path, tmp_path / "lib")

    assert sorted(logged(stdout)) == list(range(1, STEPS + 1)) and heard(tmp_path) == {}
    assert (
        "SkyRL: a call is not followed: AttributeError: 'Timer' object has no attribute 'message'" in stderr
    )


def test_the_reports_phases_know_skyrls_names():
    environment()
    root = environments.ensure("skyrl").source / "skyrl"
    text = "".join(path.read_text() for path in root.rglob("*.py"))
    for phase, names in skyrl.PHASES.items():
        assert [canonical(name) for name in names] == [phase] * len(names)
        assert all(re.sub(r"^(policy|critic|ref)_(?!train)", "", name) in text for name in names)
