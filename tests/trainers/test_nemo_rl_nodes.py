"""NeMo RL over two nodes: each worker is known by the node that it runs on, whatever the driver hands on.

A start of NeMo RL on two nodes takes some minutes and 10 GB, so it is run where RLPROF_TESTS=long asks.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.analyze.as_data import answer_of
from tests.trainers import environments, runs
from tests.trainers.local_job import command
from tests.whole_job.jobs import Job

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.slurm,
    pytest.mark.nsys,
    pytest.mark.long,
    pytest.mark.timeout(1500),
]
WORKERS = ("dtensor_policy_worker", "vllm_generation_worker")
NODES = {"n1", "n2"}


@pytest.fixture(scope="module")
def job(slurm_sandbox: Any) -> Job:
    if why := environments.lacking("nemo_rl"):
        pytest.skip(why)
    slurm = slurm_sandbox
    slurm.heal()
    folder = slurm.shared / "nemo_rl"
    folder.mkdir(exist_ok=True)
    run = runs.trainer_run(
        "nemo_rl",
        work=folder,
        steps=3,
        ray_address=runs.FROM_ENVIRONMENT,
        overrides=("cluster.num_nodes=2",),
    )
    made = Job.submit(
        slurm,
        "--exclusive",
        nodes=2,
        RLPROF_VENV=str(environments.ensure("nemo_rl").folder / "venv"),
        GPUS_PER_NODE="1",
        RLPROF_READY_SECONDS="900",
        **{name: value for name, value in run.env.items() if name not in ("PATH", "PYTHONPATH")},
        COMMAND=command(run),
        RLPROF_STEPS="2",
        RLPROF_WORKERS="*policy*,*vllm*",
        RLPROF_OPTIONS='{"t": "nvtx"}',
    )
    assert made.wait(1300).exit_code == 0, made.say()
    return made


def test_every_worker_of_both_nodes_has_its_window(job: Job):
    states = {f"nsight/{worker}/rank{rank}/step2-2": "ok" for worker in WORKERS for rank in (0, 1)}
    assert job.states() == states, job.output


def test_reports_and_events_name_the_node_that_they_come_from(job: Job):
    """The oracle is the folder that each node's own supervisor has sent its events to."""
    true_node: dict[tuple[str, int], str] = {}
    for path in job.run.glob("nodes/*/events/*.jsonl"):
        node = path.parts[-3]
        for row in map(json.loads, path.read_text().splitlines()):
            if row["event"] == "registered":
                assert row["host"] == node, row
                true_node[row["worker"], row["rank"]] = node
    for worker in WORKERS:
        assert {true_node[worker, rank] for rank in (0, 1)} == NODES
        for rank in (0, 1):
            [report] = (job.run / "profiles" / "nsight" / worker / f"rank{rank}").glob("*.nsys-rep")
            assert f"_{true_node[worker, rank]}_" in report.name


def test_the_report_has_the_ranks_of_both_nodes(job: Job):
    answer = answer_of(job.run, quiet=True)
    assert [step["step"] for step in answer["steps"]] == [2]
    hosts = {(rank["worker"], rank["rank"]): rank["host"] for rank in answer["ranks"]}
    assert {hosts[worker, rank] for worker in WORKERS for rank in (0, 1)} == NODES
