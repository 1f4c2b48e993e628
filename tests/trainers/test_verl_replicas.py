"""verl's main_ppo, unchanged, with four FSDP ranks on gloo and two real vLLM servers of two tensor parallel
ranks each: who is who, by what verl and vLLM print themselves. It takes about 10 GB and two minutes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.analyze.as_data import answer_of
from tests.real_nsys import nvtx_ranges
from tests.trainers import environments
from tests.trainers.local_job import LocalJob
from tests.trainers.own_log import agree
from tests.trainers.verl_log import logged

pytestmark = [pytest.mark.long, pytest.mark.nsys, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 1200)]
STEPS, CAPTURED = 6, (2, 4)
ACTORS, REPLICAS, TENSOR = 4, 2, 2
ROLE = "actor_rollout_ref"
OVERRIDES = (
    f"trainer.n_gpus_per_node={ACTORS}",
    "trainer.total_epochs=1000",
    f"{ROLE}.rollout.tensor_model_parallel_size={TENSOR}",
    f"{ROLE}.actor.ppo_micro_batch_size_per_gpu=1",
    f"{ROLE}.rollout.log_prob_micro_batch_size_per_gpu=1",
    # vLLM would take its whole cache of 1 GB in each of its four workers.
    f"+{ROLE}.rollout.engine_kwargs.vllm.num_gpu_blocks_override=64",
)
RANKS = {"controller": 1, "actor": ACTORS, "rollout": REPLICAS}
PARTS = [f"rollout_tp{rank}" for rank in range(TENSOR)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    if why := environments.lacking("verl"):
        pytest.skip(why)
    return LocalJob.take(
        "verl",
        tmp_path_factory.mktemp("verl_replicas") / "job",
        STEPS,
        900,
        OVERRIDES,
        GPUS_PER_NODE=str(ACTORS),
        CPUS_PER_WORKER="32",
        RLPROF_STEPS=",".join(map(str, CAPTURED)),
        RLPROF_WORKERS=",".join(RANKS),
        RLPROF_OPTIONS='{"t": "nvtx"}',
    )


@pytest.fixture(scope="module")
def said(job: LocalJob) -> str:
    return job.said()


@pytest.fixture(scope="module")
def answer(job: LocalJob) -> dict[str, Any]:
    return answer_of(job.run, jobs=1)


def test_each_window_of_each_rank_is_home(job: LocalJob) -> None:
    expected = [
        f"nsight/{worker}/rank{rank}/step{step}-{step}"
        for worker, ranks in RANKS.items()
        for rank in range(ranks)
        for step in CAPTURED
    ]
    assert job.states() == dict.fromkeys(expected, "ok")


def test_windows_are_final_while_it_trains(job: LocalJob) -> None:
    ends = {row["step"]: row["end_ns"] for row in job.events("step")}
    closed = job.events("closed")
    assert len(closed) == sum(RANKS.values()) * len(CAPTURED)
    assert all(row["seen"] in ([2], [4]) and not row["partial"] for row in closed)
    late = {row["report"]: (row["t_ns"] - ends[row["seen"][0] + 2]) / 1e9 for row in closed}
    print(f"the last is final {-max(late.values()):.1f} s before the end of the step after the next")
    assert max(late.values()) < 0, late


def test_steps_and_phases_are_verls_to_5_ms(job: LocalJob, said: str) -> None:
    own = logged(said)
    told = {row["step"]: row for row in job.events("step")}
    assert sorted(told) == sorted(own) == list(range(1, STEPS + 1))
    times: dict[tuple[int, str], tuple[float, float]] = {}
    for step, row in told.items():
        took = {name: (end - begin) / 1e9 for name, begin, end, _ in row["phases"]}
        assert {"gen", "old_log_prob", "adv", "update_actor", "update_weights"} <= set(took)
        took["step"] = (row["end_ns"] - row["begin_ns"]) / 1e9
        for name in [name for name in took if f"timing_s/{name}" in own[step]]:
            times[step, name] = took[name], own[step][f"timing_s/{name}"]
    agree(times)


def test_each_inner_worker_is_a_row_of_its_server(answer: dict[str, Any], said: str) -> None:
    """By verl, which prints each server's replica, and by vLLM, which names its workers where they speak."""
    rows = {(rank["worker"], rank["rank"]): rank["pid"] for rank in answer["ranks"]}
    wanted = RANKS | dict.fromkeys(PARTS, REPLICAS)
    assert sorted(rows) == sorted((worker, rank) for worker, ranks in wanted.items() for rank in range(ranks))
    servers = {
        pid: int(replica)
        for pid, replica in re.findall(r"\(vLLMHttpServer pid=(\d+)\).*replica_rank: (\d+),", said)
    }
    assert {rows["rollout", replica]: replica for replica in range(REPLICAS)} == {
        int(pid): replica for pid, replica in servers.items()
    }
    named = set(re.findall(r"\(vLLMHttpServer pid=(\d+)\) \(VllmWorker-(\d) pid=(\d+)\)", said))
    assert named
    for server, rank, pid in named:
        assert rows[f"rollout_tp{rank}", servers[server]] == int(pid)


def test_the_parts_of_a_server_generate_together(
    job: LocalJob, answer: dict[str, Any], tmp_path: Path
) -> None:
    generated = {row["worker"]: row for row in answer["phases"] if row["phase"] == "generation"}
    assert set(generated) == {"controller", *PARTS}
    for part in PARTS:
        assert (generated[part]["ranks"], generated[part]["steps"]) == (REPLICAS, len(CAPTURED))
    for report in job.run.glob("profiles/nsight/rollout/rank*/*.nsys-rep"):
        passes = nvtx_ranges(report, tmp_path).count("generation")
        assert passes > 0 and passes % TENSOR == 0, report  # each pass is one of every part
    assert not [row for row in answer["bubbles"] if "_tp" in row["worker"] + row["because"]]


def test_all_ranks_are_counted_and_no_advice_asks_for_what_is_there(answer: dict[str, Any]) -> None:
    counted = {row["worker"]: (row["ranks"], row["world"]) for row in answer["coverage"]["ranks"]}
    assert counted == {worker: (ranks, ranks) for worker, ranks in RANKS.items()}
    assert not [found for found in answer["findings"] if "capture the controller too" in found["advice"]]
