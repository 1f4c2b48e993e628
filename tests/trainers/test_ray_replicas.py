"""Requests of two real vLLM engines in Ray actors of one job, as we write them down, beside what each engine
says of them itself: its /metrics, and the metrics of each request.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from rlprof_ops.runtime.request_log import EngineRequest
from tests.analyze.as_data import answer_of
from tests.trainers import environments
from tests.trainers.local_job import LocalJob
from tests.trainers.requests_of import requests_of
from tests.trainers.vllm_cpu.lengths import LONG, PLANTED, SHORT, STEPS, TOOL_S

pytestmark = [pytest.mark.long, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 1000)]
RUN_S = 900
WITHIN_S = 0.005
COUNTS = (1 + len(LONG), len(SHORT) + 2)  # in a step, of each replica: with a turn more


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    if why := environments.lacking("verl"):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("ray_replicas")
    installed, script = environments.ensure("verl"), environments.HERE / "vllm_cpu" / "ray_replicas.py"
    argv = [str(installed.python), "-P", str(script), str(installed.data / "model"), str(folder)]
    return LocalJob.take("verl", folder / "job", STEPS, RUN_S, argv=argv)


@pytest.mark.parametrize("rank", [0, 1])
def test_counts_and_tokens_are_those_of_the_engines_metrics(job: LocalJob, rank: int) -> None:
    told, rows = of_replica(job, rank)
    assert len(rows) == len(told["outputs"]) == STEPS * COUNTS[rank]
    counted = counters(told["metrics"])
    assert counted["request_success_total"] == len(rows)
    assert counted["generation_tokens_total"] == sum(row.tokens for row in rows)
    assert counted["prompt_tokens_total"] == sum(row.prompt_tokens for row in rows)
    preemptions = sum(row.preemptions or 0 for row in rows)
    print(f"replica {rank}: {len(rows)} requests, {preemptions} preemptions")
    assert counted["num_preemptions_total"] == preemptions
    assert (preemptions > 0) == (rank == 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_request_is_what_its_own_metrics_say(job: LocalJob, rank: int) -> None:
    told, rows = of_replica(job, rank)
    mine = {row.id: row for row in rows}
    apart: list[float] = []
    for output in told["outputs"]:
        row, theirs = mine[output["id"]], output["metrics"]
        assert (row.prompt_tokens, row.tokens, row.reason) == (
            output["prompt"], output["tokens"], output["reason"]
        )  # fmt: skip
        assert row.preemptions == theirs["num_preemptions"]
        begin, end = output["within"]
        assert begin - WITHIN_S <= row.arrival_ns / 1e9 <= row.finished_ns / 1e9 <= end + WITHIN_S
        apart.append(row.arrival_ns / 1e9 - theirs["arrival_time"])
        for ours, name in (
            (row.queued_ns, "queued_ts"),
            (row.scheduled_ns, "scheduled_ts"),
            (row.first_token_ns, "first_token_ts"),
            (row.finished_ns, "last_token_ts"),
        ):
            assert ours is not None, (row.id, name)
            apart.append(ours / 1e9 - theirs[name] - told["wall_of_monotonic"])
    print(f"replica {rank}: at most {1e3 * max(map(abs, apart)):.3f} ms apart")
    assert max(map(abs, apart)) <= WITHIN_S


def test_the_report_names_the_last_request_the_tool_and_the_idle_replica(job: LocalJob) -> None:
    answer = answer_of(job.run, jobs=1)
    found = answer["whole_run"]["requests"]
    assert found["requests"] == STEPS * sum(COUNTS) and found["outside"] == 0
    assert [row["step"] for row in found["steps"]] == list(range(1, STEPS + 1))
    lasts = [step["last"][0] for step in found["steps"]]
    # by the engines themselves: on a busy machine the replica with the tool may be served later
    assert [(last["id"], last["rank"]) for last in lasts] == last_by_the_engines(job)
    assert {last["tokens"] for last in lasts if last["id"].startswith("planted")} == {PLANTED}
    [turns] = found["turns"]
    assert turns["longest_ms"] == pytest.approx(1e3 * TOOL_S, abs=100)
    of_tool = [row for row in of_replica(job, 1)[1] if row.turn > 1]
    assert [(row.id, row.turn, row.first) for row in of_tool] == [
        (f"tool-{step}b", 2, f"tool-{step}") for step in range(1, STEPS + 1)
    ]
    said = {row["kind"]: row["text"] for row in answer["findings"]}
    assert re.search(rf"request planted-\d of rollout 0: it made {PLANTED} tokens", said["last_requests"]), (
        said
    )
    assert said["uneven_replicas"].startswith("rollout 1 is idle for"), said


def last_by_the_engines(job: LocalJob) -> list[tuple[str, int]]:
    """Of each step the request whose last token came last, and its replica."""
    ended: dict[str, list[tuple[float, str, int]]] = {}
    for rank in (0, 1):
        told = of_replica(job, rank)[0]
        for output in told["outputs"]:
            at = output["metrics"]["last_token_ts"] + told["wall_of_monotonic"]
            ended.setdefault(output["id"].partition("-")[2][0], []).append((at, output["id"], rank))
    return [max(ended[step])[1:] for step in sorted(ended)]


def of_replica(job: LocalJob, rank: int) -> tuple[dict[str, Any], list[EngineRequest]]:
    """What the engine says, and our rows."""
    told: dict[str, Any] = json.loads((job.run.parent.parent / f"replica{rank}.json").read_text())
    return told, requests_of(job.run, rank)[1]


def counters(metrics: str) -> dict[str, float]:
    """The sum of each counter of an engine over its labels."""
    found: dict[str, float] = {}
    for line in metrics.splitlines():
        if match := re.match(r"vllm:(\w+)(?:\{.*\})? (\S+)$", line):
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found
