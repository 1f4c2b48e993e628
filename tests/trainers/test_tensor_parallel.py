"""Real vLLM with two tensor parallel ranks under real nsys, by both of its executors: each inner worker is a
row of its own, and its windows are home while the server serves.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlprof_ops.collect import event_logs
from tests.analyze.as_data import answer_of
from tests.trainers import environments
from tests.trainers.local_job import LocalJob

pytestmark = [pytest.mark.long, pytest.mark.nsys]
RUN_S = 900
CAPTURED = (2, 4)
PARTS = ("rollout_tp0", "rollout_tp1")
# The CPU platform says which Ray resource is a device, so that Ray's executor may run on it.
ON_RAY = {"VLLM_CPU_PLUS": "1", "VLLM_CPU_RAY_KEY": "GPU"}


@pytest.fixture(scope="module", params=["mp", "ray"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, LocalJob]:
    if why := environments.lacking("verl"):
        pytest.skip(why)
    executor = str(request.param)
    installed, script = environments.ensure("verl"), environments.HERE / "vllm_cpu" / "tensor_parallel.py"
    argv = [str(installed.python), "-P", str(script), str(installed.data / "model"), executor]
    folder = tmp_path_factory.mktemp(f"tensor_parallel_{executor}") / "job"
    return executor, LocalJob.take(
        "verl",
        folder,
        5,
        RUN_S,
        env=ON_RAY,
        argv=argv,
        GPUS_PER_NODE="2",
        RLPROF_STEPS=",".join(map(str, CAPTURED)),
        RLPROF_WORKERS="rollout",
        RLPROF_OPTIONS='{"t": "nvtx"}',
    )


def test_all_windows_are_home_and_named(job: tuple[str, LocalJob]) -> None:
    executor, done = job
    workers = ["rollout", *(PARTS if executor == "ray" else ())]
    expected = {f"nsight/{worker}/rank0/step{n}-{n}": "ok" for worker in workers for n in CAPTURED}
    assert done.states() == expected


def test_they_are_final_while_the_server_serves(job: tuple[str, LocalJob]) -> None:
    executor, done = job
    [served] = re.findall(r"served until (\d+)", done.output)
    logs = event_logs.read_node(done.run / "nodes" / node_of(done.run) / "events")
    closed = [event for log in logs for event in log.windows if event.event == "closed"]
    assert len(closed) == len(CAPTURED) * (3 if executor == "ray" else 1)
    assert all(event.t_ns < int(served) for event in closed)


def test_each_inner_worker_is_a_row_whose_parts_make_a_step(job: tuple[str, LocalJob]) -> None:
    _, done = job
    answer = answer_of(done.run, jobs=1)
    ranks = {rank["worker"]: place for place, rank in enumerate(answer["ranks"])}
    assert {"driver", *PARTS} <= set(ranks) and len(ranks) == len(answer["ranks"])
    generated = {row["worker"]: row for row in answer["phases"] if row["phase"] == "generation"}
    for part in PARTS:
        assert generated[part]["ranks"] == 1 and generated[part]["steps"] == len(CAPTURED)
        assert 0 < generated[part]["share_of_step"] <= 1
    assert not [row for row in answer["bubbles"] if "_tp" in row["worker"] + row["because"]]


def node_of(run: Path) -> str:
    [node] = json.loads((run / "run.json").read_text())["nodes"]
    return str(node)
