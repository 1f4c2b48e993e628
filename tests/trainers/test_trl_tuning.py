"""SFT, DPO and a bare `transformers.Trainer`, their scripts unchanged: steps, phases, windows."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.analyze.as_data import answer_of
from tests.trainers import environments
from tests.trainers.local_job import LocalJob

pytestmark = [pytest.mark.trainers, pytest.mark.long]
STEPS, RUN_S = 4, 400.0


@pytest.fixture(scope="module", params=["sft", "dpo", "precomputed", "bare"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, LocalJob]:
    if why := environments.lacking("trl"):
        pytest.skip(why)
    kind, installed = str(request.param), environments.ensure("trl")
    script, model = environments.HERE / "trl" / "tuning.py", installed.data / "model"
    folder: Path = tmp_path_factory.mktemp(kind) / "job"
    return kind, LocalJob.take(
        "trl",
        folder,
        STEPS,
        RUN_S,
        argv=[str(installed.python), str(script), str(model), str(STEPS), kind],
        RLPROF_STEPS="2:4",
        RLPROF_WORKERS="trainer",
        RLPROF_BACKEND="torch",
    )


def test_each_step_is_made_of_its_phases(job: tuple[str, LocalJob]) -> None:
    kind, done = job
    assert done.states() == {"torch/trainer/rank0/step2-3": "ok"}
    answer = answer_of(done.run, jobs=1)
    took = phases(answer)
    assert {step for step, _ in took} == {2, 3}
    own = {
        int(step): float(s)
        for step, s in re.findall(r"\bstep (\d+) took ([\d.]+) s", done.output, re.MULTILINE)
    }
    for step in (2, 3):
        row = next(row for row in answer["anatomy"] if row["step"] == step)
        parts = {name: seconds for (number, name), seconds in took.items() if number == step}
        assert {"data", "train"} <= set(parts) <= {"data", "train"}, parts
        assert sum(parts.values()) <= row["duration_ns"] / 1e9
        assert 0.9 * own[step] <= parts["train"] <= 1.02 * own[step] + 0.02, (parts, own)
    if kind == "bare":
        timed: Counter[int] = Counter()
        for step, seconds in re.findall(r"micro-batch of step (\d+) ([\d.]+)", done.output, re.MULTILINE):
            timed[int(step)] += float(seconds)  # type: ignore[assignment]
        for step in (2, 3):
            assert took[step, "train"] >= timed[step] > 0
        data = [took[step, "data"] for step in (2, 3)]
        assert 0.12 <= min(data) < 0.5, data  # four samples of 30 ms


def test_the_parts_of_the_training_are_heard(job: tuple[str, LocalJob]) -> None:
    _, done = job
    [heard] = re.findall(r"heard: (trl .*)", done.output)[-1:]
    assert {"data", "train", "forward", "backward", "optimizer"} <= set(re.findall(r"\w+", heard)), heard


def phases(answer: dict[str, Any]) -> dict[tuple[int, str], float]:
    names = answer["phase_names"]
    return {
        (row["step"], names[phase["phase"]]): phase["duration_ns"] / 1e9
        for row in answer["anatomy"]
        for phase in row["phases"]
    }
