"""The gallery of findings: every kind that the code can make stands in it, and each sentence in it is one
that the code makes of a run whose fault is known.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of, data_of
from tests.analyze.causes.dp_groups import write_groups
from tests.analyze.causes.host_faults import HostFaults
from tests.analyze.causes.loops import usual_loop
from tests.analyze.fake_run import make_run
from tests.analyze.output.test_uncaptured import Marks, loop
from tests.analyze.output.test_uncaptured import answer_for as run_of
from tests.analyze.pipelines import write_pipeline
from tests.analyze.shared import real
from tests.analyze.whole_run.dealt_requests import grouped, uneven
from tests.analyze.whole_run.generations import two_engines
from tests.analyze.whole_run.test_recorded_findings import recorded

from rlprof_ops.analyze.output import findings, gpu_findings, request_findings
from rlprof_ops.analyze.output.advice import advice_on
from rlprof_ops.analyze.output.answer import build
from rlprof_ops.analyze.readers import cache, read_report

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
Answer = dict[str, Any]
ALSO = {"straggler": ("slow_node",), "pause": ("gc", "loader")}  # kinds of advice in one section


def one_slow_rank(folder: Path) -> Answer:
    return answer_of(make_run(folder, ranks=4, slow_rank=1), jobs=1, cache=False)


def one_slow_node(folder: Path) -> Answer:
    return answer_of(make_run(folder, ranks=4, slow_node="n1"), jobs=1, cache=False)


def one_slow_group(folder: Path) -> Answer:
    return answer_of(write_groups(folder, 1, slow={2: 1.7}), jobs=1, cache=False)


def one_host_that_pauses(folder: Path) -> Answer:
    HostFaults(1, why=("user_annotation", "Python GC"), pauses={(1, s): 120.0 for s in (2, 4, 6)}).write(
        folder
    )
    return answer_of(folder, jobs=1, cache=False)


def one_host_that_waits_for_data(folder: Path) -> Answer:
    why = ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    HostFaults(1, why=why, pauses={(2, s): 60.0 for s in range(1, 7)}).write(folder)
    return answer_of(folder, jobs=1, cache=False)


def one_rank_that_the_record_names(folder: Path) -> Answer:
    """Every second step its host pauses; a GPU is throttled."""
    HostFaults(1, why=("user_annotation", "Python GC"), pauses={(1, s): 120.0 for s in (2, 4, 6)}).write(
        folder
    )
    recorded(folder, "policy", 1)
    row = {"kind": "throttle", "text": "GPU 3 of node n1 is throttled: hardware thermal slowdown", "step": 41}
    with (folder / "recorder" / "findings.jsonl").open("a") as lines:
        lines.write(json.dumps(row) + "\n")
    return answer_of(folder, jobs=1, cache=False)


def one_rank_that_both_name(folder: Path) -> Answer:
    make_run(folder, ranks=4, slow_rank=1)
    return answer_of(recorded(folder, "policy_worker", 1), jobs=1, cache=False)


def one_gpu_or_two(folder: Path) -> Answer:
    return answer_of(make_run(folder, hosts=1, tell_gpus=False), jobs=1, cache=False)


def one_report_fewer(folder: Path) -> Answer:
    make_run(folder, ranks=4, tell_world=True)
    shutil.rmtree(folder / "profiles" / "torch" / "policy_worker" / "rank2")
    return answer_of(folder, jobs=1, cache=False)


def weights_on_their_way(folder: Path) -> Answer:
    """Training hands its weights over for 30 ms of a step of 100, and generation stands still."""
    marks: Marks = {"policy_worker": {}, "vllm_worker": {}}
    for s in (1, 2, 3):
        t = 100.0 * s
        policy = {"train": (t + 45, t + 65), "weight_sync": (t + 65, t + 95)}
        marks["policy_worker"][s] = ((t, t + 100), policy)
        marks["vllm_worker"][s] = ((t, t + 100), {"generation": (t, t + 44)})
    return run_of(folder, marks)


def no_ranges(folder: Path) -> Answer:
    return run_of(folder, {"policy_worker": {s: ((100.0 * s, 100.0 * s + 100), {}) for s in (1, 2)}})


def policy_alone(folder: Path) -> Answer:
    return run_of(folder, {"policy_worker": loop("policy_worker", [1, 2])})


def seen_in_one_step_of_four(folder: Path) -> Answer:
    marks = {"policy_worker": loop("policy_worker", [1, 2, 3, 4]), "vllm_worker": loop("vllm_worker", [4])}
    return run_of(folder, marks)


def reports_lost(folder: Path) -> Answer:
    make_run(folder, ranks=2)
    captures = [
        {"state": state, "backend": "torch", "worker": "policy_worker", "rank": rank, "start": 3}
        for rank, state in enumerate(("ok", "truncated", "missing"))
    ]
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, "captures": captures}))
    place = folder / "profiles" / "torch" / "policy_worker" / "rank7"
    place.mkdir()
    (place / "policy_worker_rank7_step3-5_n1_7.pt.trace.json.gz").write_bytes(b"no gzip")
    return answer_of(folder, jobs=1, cache=False)


def still_training(folder: Path) -> Answer:
    """Three reports of a job without an end, one of them only as its node has read it."""
    make_run(folder, ranks=3)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "end": {"cause": "running"}}))
    report = next((folder / "profiles" / "torch" / "policy_worker" / "rank2").iterdir())
    cache.store(read_report(report), report, cache.digest(report), alone=True)
    report.unlink()
    return answer_of(folder, jobs=1)


def a_long_tail(folder: Path) -> Answer:
    """Another one of four rollout ranks takes 600 µs instead of 400 in each step."""
    lengthy = usual_loop(0, rollout=4, policy=4, steps=4, noise=0.0)
    for (step, _, phase, rank), pieces in lengthy.work.items():
        if phase == "generation" and rank == step % 4:
            pieces[0] += 200_000
    summaries = lengthy.summaries()
    return data_of(build(folder, [s.report for s in summaries], summaries))


def a_pipeline_with_one_heavy_stage(folder: Path) -> Answer:
    write_pipeline(folder, [100.0, 100.0, 150.0, 100.0], 8)
    return answer_of(folder, jobs=1, cache=False)


def engines_that_wait_and_preempt(folder: Path) -> Answer:
    two_engines(folder)
    return answer_of(folder, jobs=1, cache=False)


def replicas_of_which_one_has_the_long_answer(folder: Path) -> Answer:
    uneven(folder)
    return answer_of(folder, jobs=1, cache=False)


def answers_that_wait_for_one_of_their_group(folder: Path) -> Answer:
    grouped(folder)
    return answer_of(folder, jobs=1, cache=False)


def an_export_that_marks_nothing(folder: Path) -> Answer:
    return answer_of(Path(shutil.copyfile(real("h100_2gpu_part.sqlite"), folder / "trainer.sqlite")), jobs=1)


def an_engine_of_short_kernels(folder: Path) -> Answer:
    trace = real("torch/b200_eager_part.json.gz")
    return answer_of(Path(shutil.copyfile(trace, folder / "engine_rank0.json.gz")), jobs=1)


def two_ranks_of_a_recommender(folder: Path) -> Answer:
    for rank in (0, 1):
        shutil.copyfile(real(f"torch/sampled_rank-{rank}.json.gz"), folder / f"trainer_rank{rank}.json.gz")
    return answer_of(folder, jobs=1)


def two_traces_of_one_name(folder: Path) -> Answer:
    for name in ("tmp/trace.json.gz", "trace.json.gz"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(real("torch/vllm_prefill_decode_piecewise_part.json.gz"), folder / name)
    return answer_of(folder, jobs=1)


RUNS: tuple[Callable[[Path], Answer], ...] = (
    one_slow_rank,
    one_slow_node,
    one_slow_group,
    one_host_that_pauses,
    one_rank_that_the_record_names,
    one_rank_that_both_name,
    one_host_that_waits_for_data,
    one_gpu_or_two,
    one_report_fewer,
    weights_on_their_way,
    a_long_tail,
    no_ranges,
    policy_alone,
    seen_in_one_step_of_four,
    reports_lost,
    engines_that_wait_and_preempt,
    replicas_of_which_one_has_the_long_answer,
    answers_that_wait_for_one_of_their_group,
    a_pipeline_with_one_heavy_stage,
    still_training,
    an_export_that_marks_nothing,
    an_engine_of_short_kernels,
    two_ranks_of_a_recommender,
    two_traces_of_one_name,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """(kind, sentence) of every finding in the runs."""
    return [
        (finding["kind"], finding["text"])
        for run in RUNS
        for finding in run(tmp_path_factory.mktemp(run.__name__))["findings"]
    ]


def sections() -> dict[str, str]:
    """kind -> its section; the kind is the word in code that ends a heading."""
    parts = re.split(r"^## .*\(`(\w+)`\)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def quoted(section: str) -> list[str]:
    return [
        " ".join(text.replace("\n> ", " ").split())
        for text in re.findall(r"^> (.*(?:\n> .*)*)", section, re.M)
    ]


def kinds_of_the_code() -> set[str]:
    """The first argument of every `Finding(...)`, and the times of GPUs that one is made of."""
    found = {kind for kind, *_ in gpu_findings.TIMES}
    for module in (findings, gpu_findings, request_findings):
        for call in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Finding":
                found |= (
                    {str(ast.literal_eval(call.args[0]))} if ast.unparse(call.args[0]) != "kind" else set()
                )
    return found


def test_the_gallery_holds_every_kind_of_finding_and_no_other(made: list[tuple[str, str]]) -> None:
    assert set(sections()) == kinds_of_the_code()
    assert {kind for kind, _ in made} == kinds_of_the_code(), "a kind that no run here shows"


def test_every_sentence_of_the_gallery_is_one_that_the_code_makes(made: list[tuple[str, str]]) -> None:
    for kind, section in sections().items():
        assert quoted(section), kind
        for sentence in quoted(section):
            assert (kind, sentence) in made, "\n".join(
                ["this kind says:", *[t for k, t in made if k == kind]]
            )


def test_the_advice_of_the_gallery_is_that_of_the_page() -> None:
    """What stands under a finding in the report stands, word for word, in its section."""
    phases = ("generation", "train", "weight_sync")
    for kind, section in sections().items():
        text = " ".join(section.split())
        asked = {kind, *ALSO.get(kind, ())}
        for advice in {advice_on(name, phase) for name in asked for phase in phases} - {""}:
            assert advice in text, advice
