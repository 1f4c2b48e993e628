"""What we say of verl's requests, samples and engines beside verl's own log, and a window inside its steps.

One run of `main_ppo` in a job on this machine; its console is the oracle of tokens, lengths and versions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.collect.harvest.manifest import Manifest
from tests.analyze.as_data import answer_of
from tests.real_nsys import session_start_ns
from tests.trainers import environments, verl_log
from tests.trainers.local_job import LocalJob

pytestmark = [pytest.mark.long, pytest.mark.nsys, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 1200)]
STEPS = 5
ANSWERS, LIMIT = 16, 64
OVERRIDES = (
    # One request at a time takes seconds, of which a window holds a part; verl has its engines' figures off.
    "actor_rollout_ref.rollout.max_num_seqs=1",
    "actor_rollout_ref.rollout.disable_log_stats=False",
    f"data.max_response_length={LIMIT}",
    "trainer.total_epochs=1000",
)
AT_S, FOR_S = 0.6, 0.8
PART = {"workers": ["rollout"], "steps": "2, 4", "at": "gen+600ms", "for": "800ms", "options": {"t": "nvtx"}}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    if why := environments.lacking("verl"):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("verl_requests")
    request = folder / "request.json"
    request.write_text(json.dumps({"captures": [PART]}))
    knobs = {"GPUS_PER_NODE": "1", "RLPROF_REQUEST": str(request)}
    return LocalJob.take("verl", folder / "job", STEPS, 900, OVERRIDES, **knobs)


@pytest.fixture(scope="module")
def logged(job: LocalJob) -> dict[int, dict[str, float]]:
    found = verl_log.logged(job.said())
    assert sorted(found) == list(range(1, STEPS + 1))
    return found


@pytest.fixture(scope="module")
def answer(job: LocalJob) -> dict[str, Any]:
    return answer_of(job.run, jobs=1)


def test_every_request_of_a_step_is_one_of_verls_answers(
    answer: dict[str, Any], logged: dict[int, dict[str, float]]
):
    requests = answer["whole_run"]["requests"]
    lengths = requests["lengths"]["steps"]
    # verl's servers are killed at its end: what they finished in the last second is lost, and said to be.
    told = list(range(1, STEPS))
    assert lengths["step"][: len(told)] == told
    assert STEPS - 1 < requests["requests"] / ANSWERS <= STEPS
    for number, step in enumerate(told):
        assert lengths["mean"][number] == pytest.approx(logged[step]["response_length/mean"], abs=0.06)
        assert lengths["longest"][number] == logged[step]["response_length/max"]


def test_the_line_of_generation_is_of_the_steps_and_equals_verls_tokens(
    answer: dict[str, Any], logged: dict[int, dict[str, float]]
):
    rollout = answer["whole_run"]["rollout"]
    first = STEPS - rollout["steps"]  # the recorder looks once a second: it may meet the server after a step
    assert 0 <= first < STEPS
    theirs = [ANSWERS * logged[step]["response_length/mean"] for step in range(first + 1, STEPS + 1)]
    assert rollout["tokens"] == pytest.approx(sum(theirs) / len(theirs), rel=0.15)


def test_staleness_is_that_of_verls_own_metric(answer: dict[str, Any], logged: dict[int, dict[str, float]]):
    stale = answer["whole_run"]["staleness"]
    assert stale["unit"] == "samples" and [row["step"] for row in stale["steps"]] == sorted(logged)
    for row in stale["steps"]:
        theirs, name = logged[row["step"]], "training/off_policy/trajectory_staleness"
        assert row["samples"] == ANSWERS
        assert (row["mean"], row["least"], row["most"]) == pytest.approx(
            (theirs[f"{name}/mean"], theirs[f"{name}/min"], theirs[f"{name}/max"]), abs=0.001
        )


def test_a_window_inside_a_step_is_where_the_manifest_says(job: LocalJob, tmp_path: Path):
    began = generation_of(job.run)
    captures = Manifest.load(job.run).captures
    assert [each.start for each in captures] == [2, 4]
    for capture in captures:
        assert capture.report is not None, capture.reason
        begin_s = (session_start_ns(job.run / capture.report, tmp_path) - began[capture.start]) / 1e9
        print(f"step {capture.start}: collected from {begin_s:.3f} s, manifest {capture.taken_s}")
        assert capture.taken_s[0] == pytest.approx(begin_s, abs=0.2)
        # Never before; it is late by what nsys needs to start, which on a busy machine nothing bounds.
        assert AT_S - 0.5 <= begin_s <= capture.taken_s[1]
        assert capture.state == "ok" or begin_s > AT_S + 0.5, capture.reason  # later generation may be over
        assert capture.taken_s[1] + 0.001 >= AT_S + FOR_S


def generation_of(run: Path) -> dict[int, int]:
    """When generation of each step began, Unix ns, as verl's controller told it."""
    found: dict[int, int] = {}
    for path in run.glob("nodes/*/events/controller_rank0_*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            if row["event"] == "step":
                found[row["step"]] = min(begin for name, begin, *_ in row["phases"] if name == "gen")
    return found
