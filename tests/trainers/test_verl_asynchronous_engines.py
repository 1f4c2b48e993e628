"""verl's one-step-off and fully asynchronous mains, unchanged, with a real FSDP actor and a real vLLM server
beside it: windows, steps and phases by verl's own log. Each takes about 8 GB and some minutes.

Two things stand in `verl/separate`, by verl's and vLLM's own ways in: gloo carries the weights, where verl's
configuration names NCCL, and a call that this vLLM no longer has is translated.
"""

from __future__ import annotations

import itertools
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.job.knobs import python_path
from tests.analyze.as_data import answer_of
from tests.real_nsys import nvtx_ranges
from tests.trainers import environments, runs
from tests.trainers.local_job import LocalJob
from tests.trainers.own_log import PUT_ASIDE_S, WITHIN_S, agree
from tests.trainers.verl_log import logged

pytestmark = [pytest.mark.long, pytest.mark.nsys, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 1500)]
STEPS, CAPTURED, MINI = 6, (2, 4), 2
ROLE = "actor_rollout_ref"
SITE = str(environments.HERE / "verl" / "separate")
OVERRIDES = (
    f"{ROLE}.hybrid_engine=False",
    "rollout.nnodes=1",
    "rollout.n_gpus_per_node=1",
    "trainer.total_epochs=1000",
    # Seconds of training, and as many of generation: one request at a time.
    f"{ROLE}.actor.ppo_epochs=6",
    f"{ROLE}.rollout.max_num_seqs=1",
    "data.max_response_length=64",
    f"{ROLE}.rollout.checkpoint_engine.backend=gloo",
    f"{ROLE}.rollout.checkpoint_engine.custom_backend_module=gloo_weights",
    f"+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH='{python_path(SITE)}'",
    "hydra.searchpath=[pkg://verl.trainer.config]",  # one of its files names a folder of verl's checkout
)
MAINS = {
    "one_step_off": ("verl.experimental.one_step_off_policy.main_ppo", ()),
    "fully_async": (
        "verl.experimental.fully_async_policy.fully_async_main",
        (
            f"rollout.total_rollout_steps={STEPS * MINI * 4}",
            "rollout.n=4",
            "data.train_batch_size=0",
            f"async_training.trigger_parameter_sync_step={MINI}",
            "async_training.staleness_threshold=0.5",
        ),
    ),
}
WORKERS = {
    "one_step_off": {"controller", "actor", "rollout", "agent_loop", "reward_loop"},
    "fully_async": {"controller", "actor", "rollout", "agent_loop", "reward_loop", "rollouter"},
}


def take(name: str, folder: Path) -> LocalJob:
    """The job of one main."""
    if why := environments.lacking("verl"):
        pytest.skip(why)
    main, overrides = MAINS[name]
    run = runs.trainer_run(
        "verl",
        work=folder,
        steps=STEPS,
        ray_address=runs.FROM_ENVIRONMENT,
        overrides=(*OVERRIDES, *overrides),
    )
    return LocalJob.take(
        "verl",
        folder / "job",
        STEPS,
        1400,
        env={"PYTHONPATH": SITE},
        argv=[main if word == "verl.trainer.main_ppo" else word for word in run.argv],
        GPUS_PER_NODE="2",
        CPUS_PER_WORKER="48",
        RLPROF_STEPS=",".join(map(str, CAPTURED)),
        RLPROF_WORKERS="*",
        RLPROF_OPTIONS='{"t": "nvtx"}',
    )


@pytest.fixture(scope="module")
def one_step_off(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    return take("one_step_off", tmp_path_factory.mktemp("one_step_off"))


@pytest.fixture(scope="module")
def fully_async(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    return take("fully_async", tmp_path_factory.mktemp("fully_async"))


@pytest.fixture(params=MAINS)
def job(request: pytest.FixtureRequest) -> LocalJob:
    found: LocalJob = request.getfixturevalue(request.param)
    return found


def which(request: pytest.FixtureRequest) -> str:
    """Of MAINS, by the parameter of `job`."""
    return str(request.node.callspec.params["job"])


def seconds(phase: list[Any]) -> float:
    return float(phase[2] - phase[1]) / 1e9


def test_each_window_of_each_role_is_home(job: LocalJob, request: pytest.FixtureRequest) -> None:
    workers = WORKERS[which(request)]
    assert job.states() == {
        f"nsight/{worker}/rank0/step{step}-{step}": "ok" for worker in workers for step in CAPTURED
    }


def test_windows_are_of_their_step_and_final_while_it_trains(job: LocalJob) -> None:
    ends = {row["step"]: row["end_ns"] for row in job.events("step")}
    closed = job.events("closed")
    assert {tuple(row["seen"]) for row in closed} == {(step,) for step in CAPTURED}
    assert not [row for row in closed if row["partial"]]
    late = {row["path"]: (row["t_ns"] - ends[row["seen"][0] + 2]) / 1e9 for row in closed}
    print(f"the last is final {-max(late.values()):.1f} s before the end of the step after the next")
    assert max(late.values()) < 0, late


def test_reports_hold_who_trains_and_who_generates_beside_it(
    job: LocalJob, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A request that goes on through a whole window of the fully asynchronous agent loop has no range there,
    but the samples that are scored in it have.
    """
    beside = {"generate_sequences"} | ({"compute_score"} if which(request) == "fully_async" else set())
    for step in CAPTURED:
        ranges = {}
        for report in job.run.glob(f"profiles/nsight/*/rank0/*_step{step}-{step}_*.nsys-rep"):
            ranges[report.parents[1].name] = nvtx_ranges(report, tmp_path)
        assert {"actor_update", "update_weights"} <= set(ranges["actor"])
        assert {"generation", "rlprof:abort_all_requests"} <= set(ranges["rollout"])
        assert ranges["rollout"].count("rlprof:set_global_steps") == 1  # its weights are of one step more
        assert beside & set(ranges["agent_loop"])


def test_the_page_shows_generation_beside_training(job: LocalJob, request: pytest.FixtureRequest) -> None:
    """Requests of the fully asynchronous agent loop go on through windows: no report has those whole."""
    answer = answer_of(job.run, jobs=1)
    shown = {(row["worker"], row["phase"]): (row["ranks"], row["steps"]) for row in answer["phases"]}
    wanted = [("rollout", "generation"), ("actor", "train")]
    if which(request) == "one_step_off":
        wanted.append(("agent_loop", "generation"))
    wanted += [("actor", "weight_sync"), *(("controller", name) for name in ("train", "weight_sync"))]
    assert {pair: shown.get(pair) for pair in wanted} == dict.fromkeys(wanted, (1, len(CAPTURED)))
    assert not [found for found in answer["findings"] if found["kind"] in ("coverage", "uncaptured")]


def test_one_step_offs_steps_and_phases_are_verls_to_5_ms(one_step_off: LocalJob) -> None:
    own = logged(one_step_off.said())
    told = {row["step"]: row for row in one_step_off.events("step")}
    assert sorted(told) == sorted(own) == list(range(1, STEPS + 1))
    pairs = {}
    for step, row in told.items():
        assert [name for name, *_, depth in row["phases"] if depth == 0] == [
            "gen", "sync_rollout_weights", "reward", "adv", "update_actor",
        ]  # fmt: skip
        whole = ["step", row["begin_ns"], row["end_ns"]]
        for phase in (*row["phases"], whole):
            pairs[step, phase[0]] = seconds(phase), own[step][f"timing_s/{phase[0]}"]
    agree(pairs)


def versions(job: LocalJob) -> dict[int, dict[str, float]]:
    """What verl logs of each version; version 0 is what it starts with."""
    return {version: figures for version, figures in logged(job.said()).items() if version}


def test_a_fully_asynchronous_step_is_a_version_of_verls_with_its_mini_steps(fully_async: LocalJob) -> None:
    """verl logs a version before it has the times of its last mini-step: they are in the next one's."""
    own = versions(fully_async)
    told = {row["step"]: row for row in fully_async.events("step")}
    assert sorted(told) == sorted(own) == list(range(1, STEPS + 1))
    minis: dict[str, list[float]] = {"gen": [], "adv": [], "update_actor": []}
    for step, row in told.items():
        for name, times in minis.items():
            mine = [seconds(phase) for phase in row["phases"] if phase[0] == name]
            assert len(mine) == MINI, (step, row["phases"])
            times += mine
        assert row["phases"][-1][0] == "param_sync"
    pairs = {}
    for step in told:
        last = MINI * step - 1
        for name, times in minis.items():
            pairs[step, name] = sum(times[max(0, last - MINI) : last]), own[step][f"timing_s/{name}"]
        if step > 1:
            synced = seconds(told[step - 1]["phases"][-1])
            pairs[step - 1, "param_sync"] = synced, own[step]["timing_s/timing_s/param_sync"]
    agree(pairs)


def test_a_version_ends_where_verl_says(fully_async: LocalJob) -> None:
    """verl prints its clock between the update of each mini-step and what follows."""
    said = re.findall(
        r"global_steps: (\d+) local_trigger_step: (\d+) .* (\d+:\d+:[\d.]+)", fully_async.said()
    )
    told = {row["step"]: row for row in fully_async.events("step")}
    assert [int(mini) for mini, *_ in said] == list(range(1, MINI * STEPS + 1))
    for mini, place, at in said:
        row = told[-(-int(mini) // MINI)]
        updated = [phase[2] for phase in row["phases"] if phase[0] == "update_actor"][int(place) - 1]
        ours = datetime.fromtimestamp(updated / 1e9)
        theirs = datetime.strptime(at, "%H:%M:%S.%f").replace(ours.year, ours.month, ours.day)
        later = (theirs - ours).total_seconds()
        assert -WITHIN_S <= later <= PUT_ASIDE_S, (mini, later)


def test_samples_of_older_weights_are_those_that_verl_counts(fully_async: LocalJob) -> None:
    own = versions(fully_async)
    batches = sorted(fully_async.events("samples"), key=lambda row: row["t_ns"])
    assert [row["step"] for row in batches] == [step for step in range(1, STEPS + 1) for _ in range(MINI)]
    stale = [sum(count for _, last, count in row["made"] if row["version"] - last >= 1) for row in batches]
    partial = [sum(count for first, last, count in row["made"] if first != last) for row in batches]
    counted = list(itertools.accumulate(stale))
    assert counted[-1] > 0 and all(sum(count for *_, count in row["made"]) == 16 for row in batches)
    for step, theirs in own.items():
        last = MINI * step - 1
        assert theirs["fully_async/count/stale_trajectory_processed"] == counted[last - 1]
        found = sum(partial[max(0, last - MINI) : last])
        assert theirs["fully_async/partial/total_partial_num"] == found
