"""What we say of verl's requests, samples and engines beside verl's own log, and windows inside its steps.

One run of `main_ppo` in a job on this machine. Its console is the oracle of tokens, lengths and versions; of
times it is Ray's own account of verl's tasks, and what the reports themselves hold.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.check_result import OK
from rlprof_ops.collect.harvest.manifest import CaptureResult, Manifest
from rlprof_ops.doctor.node_resources import autogroups
from tests.analyze.as_data import answer_of
from tests.real_nsys import session_start_ns
from tests.reports_held import held_by
from tests.trainers import environments, verl_log
from tests.trainers.local_job import LocalJob

pytestmark = [pytest.mark.long, pytest.mark.nsys, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 1200)]
STEPS = 5
ANSWERS, LIMIT = 16, 192
UPDATES = 4  # of the model, in one task of the actor
OVERRIDES = (
    # One request at a time takes seconds, of which a window holds a part; verl has its engines' figures off.
    "actor_rollout_ref.rollout.max_num_seqs=1",
    "actor_rollout_ref.rollout.disable_log_stats=False",
    f"data.max_response_length={LIMIT}",
    "actor_rollout_ref.rollout.max_model_len=256",
    f"actor_rollout_ref.actor.ppo_epochs={UPDATES}",
    "trainer.total_epochs=1000",
)
WITHIN_S = 0.5
AT_S, FOR_S = 2.0, 2.0
AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
HOST = {"backend": "memory", "options": {"host": True, "interval_ms": 10}}
CAPTURES: list[dict[str, Any]] = [
    {"workers": ["rollout"], "steps": "2, 4", "at": "gen+2s", "for": "2s", "options": {"t": "nvtx"}},
    {"backend": "torch", "workers": ["rollout"], "steps": "3, 5", "at": "gen+1s", "for": "1s"},
    # not in the steps of torch, which writes its trace for 0.6 s and more: nothing opens or closes meanwhile
    {**HOST, "workers": ["rollout"], "steps": "2, 4", "at": "gen+1s", "for": "1s"},
    {**HOST, "workers": ["actor"], "steps": "2, 4", "at": "update_actor", "for": "500ms"},
    {"backend": "torch", "workers": ["actor"], "steps": "3", "at": "update_actor", "for": "300ms"},
    {"backend": "torch", "workers": ["actor"], "steps": "5", "at": "update_actor+500ms", "for": "300ms"},
]
Tasks = dict[str, list[tuple[float, float]]]  # begin and end of each call of a method, Unix seconds


@pytest.fixture(scope="module")
def without_autogroups() -> Iterator[None]:
    """With them nsys starts 1 to 4 s late beside verl's engine on two cores."""
    before = AUTOGROUPS.read_text() if AUTOGROUPS.exists() else "0"
    if autogroups().state != OK:
        try:
            AUTOGROUPS.write_text("0")
        except OSError as error:
            print(f"{AUTOGROUPS} cannot be set to 0 ({error.strerror}): windows of nsys may be late")
    yield
    if AUTOGROUPS.exists() and AUTOGROUPS.read_text() != before:
        AUTOGROUPS.write_text(before)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, without_autogroups: None) -> LocalJob:
    if why := environments.lacking("verl"):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("verl_requests")
    request = folder / "request.json"
    request.write_text(json.dumps({"captures": CAPTURES}))
    knobs = {"GPUS_PER_NODE": "1", "RLPROF_REQUEST": str(request)}
    return LocalJob.take("verl", folder / "job", STEPS, 900, OVERRIDES, tasks=folder / "tasks.json", **knobs)


@pytest.fixture(scope="module")
def tasks(job: LocalJob) -> Tasks:
    """By the name of the method, one call after the other."""
    found: Tasks = {}
    for row in json.loads((job.run.parents[1] / "tasks.json").read_text()):
        method = row["cat"].rpartition(".")[2]
        found.setdefault(method, []).append((row["ts"] / 1e6, (row["ts"] + row["dur"]) / 1e6))
    of_steps = {method: sorted(calls) for method, calls in found.items() if len(calls) == STEPS}
    assert {"generate_sequences", "actor_rollout_update_actor"} <= of_steps.keys(), found.keys()
    return of_steps


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


def test_a_window_inside_a_step_is_where_the_manifest_says(job: LocalJob, tasks: Tasks, tmp_path: Path):
    captures = windows(job.run, "nsight", "rollout")
    assert [each.start for each in captures] == [2, 4]
    for capture in captures:
        assert capture.report is not None, capture.reason
        began_s = tasks["generate_sequences"][capture.start - 1][0]
        begin_s = session_start_ns(job.run / capture.report, tmp_path) / 1e9 - began_s
        print(f"step {capture.start}: collected from {begin_s:.3f} s, manifest {capture.taken_s}")
        assert capture.taken_s[0] == pytest.approx(begin_s, abs=0.2)
        assert begin_s == pytest.approx(AT_S, abs=WITHIN_S), autogroups()
        assert capture.state == "ok", capture.reason
        assert capture.taken_s[1] == pytest.approx(AT_S + FOR_S, abs=WITHIN_S)
        held = held_by("nsight", job.run / capture.report, tmp_path)
        assert "generation" in held.names
        assert begin_s <= held.first_s - began_s <= held.last_s - began_s <= capture.taken_s[1] + WITHIN_S


@pytest.mark.parametrize(
    ("backend", "worker", "steps", "task", "at_s", "for_s"),
    [
        ("torch", "rollout", [3, 5], "generate_sequences", 1.0, 1.0),
        ("memory", "rollout", [2, 4], "generate_sequences", 1.0, 1.0),
        ("memory", "actor", [2, 4], "actor_rollout_update_actor", 0.0, 0.5),
    ],
)
def test_a_window_of_torch_or_memory_holds_its_time(
    job: LocalJob,
    tasks: Tasks,
    tmp_path: Path,
    backend: str,
    worker: str,
    steps: list[int],
    task: str,
    at_s: float,
    for_s: float,
):
    """From 0.5 s before to 0.5 s after, by what the report itself holds and by Ray's clock."""
    captures = windows(job.run, backend, worker)
    assert [each.start for each in captures] == steps
    for capture in captures:
        assert capture.state == "ok" and capture.report is not None, capture.reason
        held = held_by(backend, job.run / capture.report, tmp_path)
        began_s = tasks[task][capture.start - 1][0]
        seen = held.first_s - began_s, held.last_s - began_s
        print(f"{capture.id}: holds {seen[0]:.3f} to {seen[1]:.3f} s, manifest {capture.taken_s}")
        assert seen == pytest.approx((at_s, at_s + for_s), abs=WITHIN_S)
        assert capture.taken_s == pytest.approx((at_s, at_s + for_s), abs=WITHIN_S)


def test_torch_begins_and_ends_inside_the_actors_update(job: LocalJob, tasks: Tasks, tmp_path: Path):
    """The update is one task of Ray's; in it torch begins and ends around forward passes."""
    captures = windows(job.run, "torch", "actor")
    assert [each.start for each in captures] == [3, 5]
    for capture, at_s in zip(captures, (0, 0.5), strict=True):
        assert capture.state == "ok" and capture.report is not None, capture.reason
        begin_s, end_s = tasks["actor_rollout_update_actor"][capture.start - 1]
        held = held_by("torch", job.run / capture.report, tmp_path)
        seen = held.first_s - begin_s, held.last_s - begin_s
        print(f"{capture.id}: holds {seen} s of {end_s - begin_s:.3f} s, manifest {capture.taken_s}")
        assert seen == pytest.approx((at_s, at_s + 0.3), abs=WITHIN_S)
        assert capture.taken_s == pytest.approx((at_s, at_s + 0.3), abs=WITHIN_S)
        with gzip.open(job.run / capture.report) as packed:
            names = [event["name"] for event in json.load(packed)["traceEvents"]]
        assert sum(name.startswith("Optimizer.step") for name in names) < UPDATES
        assert any(name.startswith("aten::") for name in names)


def windows(run: Path, backend: str, worker: str) -> list[CaptureResult]:
    captures = Manifest.load(run).captures
    return [each for each in captures if (each.backend, each.worker) == (backend, worker)]
