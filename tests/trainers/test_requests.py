"""Requests of real vLLM engines as we write them down, beside what vLLM itself says of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from rlprof_ops.job.knobs import import_path
from rlprof_ops.runtime.request_log import EngineRequest
from tests.analyze.as_data import answer_of
from tests.trainers import environments
from tests.trainers.local_job import LocalJob
from tests.trainers.requests_of import requests_of
from tests.trainers.vllm_cpu.lengths import LENGTHS, SERVED, STEPS, TOOL_S

RUN_S = 900
WITHIN_S = 0.005


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    if why := environments.lacking("verl"):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("requests") / "job"
    installed, script = environments.ensure("verl"), environments.HERE / "vllm_cpu" / "uneven_requests.py"
    folder_of_vllm = folder.parent
    argv = [str(installed.python), "-P", str(script), str(installed.data / "model"), str(folder_of_vllm)]
    return LocalJob.take("verl", folder, STEPS, RUN_S, argv=argv)


@pytest.mark.long
def test_an_offline_engines_requests_are_what_its_outputs_say(job: LocalJob):
    told = json.loads((job.run.parent.parent / "llm.json").read_text())
    first, rows = requests_of(job.run, 0)
    assert (first["worker"], first["engine"]) == ("rollout", "vllm")
    aborted = [row for row in rows if row.id == "given up"]
    assert [row.reason for row in aborted] == ["abort"] * STEPS
    assert all(0 < row.tokens < 100 for row in aborted)
    done = {row.id: row for row in rows if row.id != "given up"}
    assert len(done) == STEPS * (len(LENGTHS) + 3) == len(rows) - STEPS
    for output in told["outputs"]:
        several = len(output["tokens"]) > 1
        for index, (tokens, reason) in enumerate(zip(output["tokens"], output["reasons"], strict=True)):
            row = done[f"{output['id']}#{index}" if several else output["id"]]
            assert (row.prompt_tokens, row.tokens, row.reason) == (output["prompt"], tokens, reason)
            assert row.preemptions == 0
            begin, end = output["within"]
            times = [row.arrival_ns, row.queued_ns, row.scheduled_ns, row.first_token_ns, row.finished_ns]
            assert [each / 1e9 for each in times] == sorted(each / 1e9 for each in times)
            assert begin - WITHIN_S <= times[0] / 1e9 and times[-1] / 1e9 <= end + WITHIN_S
            if several:
                continue
            theirs, zero = output["metrics"], told["wall_of_monotonic"]
            assert row.arrival_ns / 1e9 == pytest.approx(theirs["arrival_time"], abs=WITHIN_S)
            for ours, name in (
                (row.queued_ns, "queued_ts"),
                (row.scheduled_ns, "scheduled_ts"),
                (row.first_token_ns, "first_token_ts"),
                (row.finished_ns, "last_token_ts"),
            ):
                assert ours / 1e9 == pytest.approx(theirs[name] + zero, abs=WITHIN_S), name


@pytest.mark.long
def test_a_servers_requests_are_what_its_answers_and_its_metrics_say(job: LocalJob):
    told = json.loads((job.run.parent.parent / "serve.json").read_text())
    _, rows = requests_of(job.run, 1)
    assert len(rows) == STEPS * SERVED == len(told["answers"])
    found = {answer["id"]: answer["usage"] for answer in told["answers"]}
    for row in rows:
        [usage] = [usage for name, usage in found.items() if row.id.startswith(name)]
        assert (row.prompt_tokens, row.tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    counters = [line.split() for line in told["metrics"].splitlines() if line.startswith("vllm:")]

    def counted(name: str) -> float:
        return sum(float(line[-1]) for line in counters if line[0].startswith(f"vllm:{name}"))

    assert counted("generation_tokens_total") == sum(row.tokens for row in rows)
    assert counted("prompt_tokens_total") == sum(row.prompt_tokens for row in rows)
    assert counted("request_success_total") == len(rows)


@pytest.mark.long
def test_the_report_names_the_last_request_of_each_step(job: LocalJob):
    told = json.loads((job.run.parent.parent / "llm.json").read_text())
    longest = [output["id"] for output in told["outputs"] if output["tokens"] == [max(LENGTHS)]]
    assert len(longest) == STEPS
    answer = answer_of(job.run, jobs=1)
    found = answer["whole_run"]["requests"]
    assert [row["step"] for row in found["steps"]] == list(range(1, STEPS + 1))
    assert found["requests"] == STEPS * (len(LENGTHS) + 4 + SERVED) and found["outside"] == 0
    assert [(row["worker"], row["rank"]) for row in found["replicas"]] == [("rollout", 0), ("rollout", 1)]
    for name, step in zip(longest, found["steps"], strict=True):
        assert step["requests"] == len(LENGTHS) + 4 + SERVED
        assert (step["groups"]["count"], step["groups"]["answers"]) == (7, 8)
        longest_of_last = max(step["last"], key=lambda row: row["ms"])
        assert (longest_of_last["id"], longest_of_last["rank"]) == (name, 0)
        assert longest_of_last["tokens"] == max(LENGTHS)
        assert longest_of_last["answers"] == 4 and longest_of_last["alone_ms"] > 0


@pytest.mark.long
def test_answers_to_one_prompt_are_a_group_on_both_replicas_and_a_turn_is_of_its_sample(job: LocalJob):
    folder = job.run.parent.parent
    told = json.loads((folder / "llm.json").read_text())["outputs"]
    rows = {row.id: row for row in requests_of(job.run, 0)[1]}
    groups: dict[str, set[int | None]] = {}
    for output in told[: len(told) // STEPS]:
        several = len(output["tokens"]) > 1
        mine = [
            rows[f"{output['id']}#{n}" if several else output["id"]] for n in range(len(output["tokens"]))
        ]
        if output["asks"] in rows:  # a turn asks after the request that it follows
            [turn], first = mine, rows[output["asks"]]
            assert (turn.turn, turn.first, turn.group) == (2, first.id, first.group)
            assert turn.arrival_ns - first.finished_ns >= TOOL_S * 1e9
        else:
            assert {(row.turn, row.first) for row in mine} == {(1, None)}
            groups.setdefault(output["asks"], set()).update(row.group for row in mine)
    answers = json.loads((folder / "serve.json").read_text())["answers"]
    for row in requests_of(job.run, 1)[1]:
        [prompt] = [answer["prompt"] for answer in answers if row.id.startswith(answer["id"])]
        groups[prompt].add(row.group)
    assert len(groups) == len(LENGTHS) // 4 + 1 == len(set.union(*groups.values()))


def test_groups_and_turns_are_told_of_vllms_own_requests(tmp_path: Path):
    """vLLM's OutputProcessor alone, in seconds: the same fields as with an engine behind it."""
    if why := environments.lacking("verl"):
        pytest.skip(why)
    installed = environments.ensure("verl")
    script = environments.HERE / "vllm_cpu" / "real_processor.py"
    subprocess.run(
        [str(installed.python), "-P", str(script), str(installed.data / "model")],
        env={**os.environ, "RLPROF_NODE_DIR": str(tmp_path), "PYTHONPATH": import_path()},
        check=True,
        timeout=300,
    )
    [path] = (tmp_path / "requests").iterdir()
    told = [EngineRequest(*json.loads(line)) for line in path.read_text().splitlines()[1:]]
    rows = {row.id: row for row in told}
    assert {name: row.tokens for name, row in rows.items()} == {
        "a": 3, "b": 4, "c": 1, "n2#0": 2, "n2#1": 2, "turn2": 2, "turn3": 1
    }  # fmt: skip
    one, other = rows["a"].group, rows["c"].group
    assert one is not None and other is not None and one != other
    assert [rows[name].group for name in ("b", "turn2", "turn3")] == [one] * 3
    assert [rows[name].group for name in ("n2#0", "n2#1")] == [other] * 2
    later = {name: (row.turn, row.first) for name, row in rows.items() if row.turn > 1}
    assert later == {"turn2": (2, "b"), "turn3": (3, "b")}
