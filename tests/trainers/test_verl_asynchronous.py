"""verl's one-step-off and fully asynchronous trainers, whose `__init__` calls no base class's."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

import pytest

from rlprof_ops.analyze.whole_run.sample_groups import staleness_of
from rlprof_ops.job.knobs import python_path
from rlprof_ops.request import load_request
from tests.trainers import environments

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(300)]

HERE = Path(__file__).parent / "verl"


def run(which: str, folder: Path) -> tuple[list[list[float]], list[dict]]:
    """What verl's clock says of each call of `fit_step`, and the steps that were heard."""
    installed = environments.ensure("verl")
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": python_path(str(HERE / "site")),
        "RLPROF_NODE_DIR": str(folder),
        "RLPROF_REQUEST_JSON": load_request(env={"RLPROF_STEPS": "2", "RLPROF_WORKERS": "*"}).to_json(),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu_platform",
    }
    done = subprocess.run(
        [str(installed.python), "-P", "-W", "ignore", str(HERE / "asynchronous.py"), which],
        env=env,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (folder / "said.txt").write_text(done.stdout)
    [events] = folder.glob("events/controller_rank0_*.jsonl")
    rows = [json.loads(line) for line in events.read_text().splitlines()]
    return json.loads(done.stdout.splitlines()[-1]), [row for row in rows if row["event"] == "step"]


def seconds(step: dict) -> float:
    return float(step["end_ns"] - step["begin_ns"]) / 1e9


def test_one_step_off_has_its_steps_and_what_runs_beside_them_is_no_phase(tmp_path: Path):
    own, heard = run("one_step_off", tmp_path)
    phases = ["reward", "old_log_prob", "ref", "adv", "update_actor"]
    assert [step["step"] for step in heard] == [1, 2, 3, 4, 5, 6]
    apart: list[float] = []
    for (_, took), step in zip(own, heard, strict=True):
        apart.append(seconds(step) - took)
        names = [name for name, *_ in step["phases"]]
        assert names == ["gen"] * (step["step"] > 1) + phases
        assert all(depth == 0 for *_, depth in step["phases"])
    # A busy machine may come between the two clocks' readings of one step.
    assert sorted(map(abs, apart))[-2] < 0.005, apart


def test_a_step_of_the_fully_asynchronous_trainer_is_a_version_of_its_parameters(tmp_path: Path):
    own, heard = run("fully_async", tmp_path)
    assert [version for version, _ in own] == [0, 1, 1, 2, 2, 3]
    assert [step["step"] for step in heard] == [1, 2, 3]
    more: list[float] = []
    for number, step in enumerate(heard):
        [(_, first), (_, second)] = own[2 * number : 2 * number + 2]
        more.append(seconds(step) - first - second)
        names = [name for name, *_ in step["phases"]]
        assert names.count("update_actor") == 2 and names[-1] == "param_sync"
    assert min(more) >= 0 and statistics.median(more) < 1, more


def test_samples_of_older_weights_are_those_that_verl_counts(tmp_path: Path):
    """A batch of each mini-step is put together by verl's own function, and counted by its own metric."""
    node = tmp_path / "nodes" / "n0"
    run("fully_async", node)
    said = [line.split()[1:] for line in (node / "said.txt").read_text().splitlines() if "stale:" in line]
    theirs: dict[int, int] = {}
    for version, stale in said:
        theirs[int(version) + 1] = theirs.get(int(version) + 1, 0) + int(stale)
    found = staleness_of(tmp_path)
    assert found is not None and found.unit == "samples" and found.most == 2
    rows = {row.step: row for row in found.steps}
    assert set(rows) == {1, 2, 3}
    for step, row in rows.items():
        assert row.samples == 6 and row.mixed == (2 if step > 1 else 0)
        assert (row.least, row.most) == (0, min(2, step - 1))
        assert theirs[step] == (2 if step > 1 else 0)
        assert row.mean == pytest.approx(2 * min(2, step - 1) / 6, abs=0.001)
