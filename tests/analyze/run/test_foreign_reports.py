"""Folders of reports that nobody here named: whose they are, which belong together, and on whose clock."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePath
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of, typed
from tests.analyze.fake_run import make_run
from tests.analyze.nsys_exports import two_phases, write_export
from tests.analyze.output.test_answer import check_sums, validate
from tests.analyze.shared import kernel, mark, real, write_trace

from rlprof_ops.analyze.output.terminal import path_lines
from rlprof_ops.analyze.run.foreign_names import stage_in_name, told_by
from rlprof_ops.errors import UsageError

BASE_NS = 1_790_857_026_000_000_000
MS = 1_000_000


def events(first: str, second: str) -> list[dict[str, Any]]:
    """A step in two halves of 50 ms, a kernel in each."""
    return [
        mark("step 3", 0, 100_000),
        mark(first, 0, 50_000),
        mark(second, 50_000, 50_000),
        kernel("a", 1_000, 40_000),
        kernel("b", 51_000, 40_000),
    ]


def answered(folder: Path) -> dict[str, Any]:
    answer = answer_of(folder, jobs=1, cache=False)
    validate(answer)
    check_sums(answer)
    return answer


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("rank0_trace.json.gz", ("worker", 0, None, None)),
        ("actor/rank1_trace.json.gz", ("actor", 1, None, None)),
        ("trace_rank_12.json", ("worker", 12, None, None)),
        ("rank-3.1790857026.pt.trace.json.gz", ("worker", 3, None, None)),
        ("vllm_rank0.json.gz", ("vllm", 0, None, None)),
        ("train_step_10_rank2.json", ("train", 2, 10, 11)),
        ("policy/iteration_100/rank7_trace.json", ("policy", 7, None, None)),
        ("actor.sqlite", ("actor", None, None, None)),
        ("profile.sqlite", ("worker", None, None, None)),
        ("rollout/prof_rank-0.json.gz", ("rollout", 0, None, None)),
        ("frankfurt12.json.gz", ("frankfurt12", None, None, None)),
        ("train_step3-5_rank2.json", ("train", 2, 3, 6)),
        ("iter_100-1099.json", ("worker", None, 100, 1100)),
        # a second number that is no last step: Unix time, a pid, an ordinal
        ("trace_step100-1790857026.json", ("worker", None, 100, 101)),
        ("iter_100-4321.json", ("worker", None, 100, 101)),
        ("actor_step_100-7.json", ("actor", None, 100, 101)),
    ],
)
def test_what_a_foreign_name_tells(path: str, told: tuple[Any, ...]) -> None:
    found = told_by(PurePath(path))
    assert (found.worker, found.rank, found.start, found.stop) == told


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("trace_step100-1790857026.json", 100),
        ("w_rank0_step3-1790857026_n1_77.pt.trace.json", 3),
        (f"w_rank{9**30}_step{9**30}-{9**31}_n1_77.pt.trace.json", 0),
        (f"trace_step{9**30}_rank{9**30}.json", 0),
    ],
)
def test_no_number_in_a_name_is_taken_for_so_many_steps(tmp_path: Path, name: str, step: int) -> None:
    """Steps are listed one by one, and a number may be as long as a name."""
    unmarked = [event for event in events("a", "b") if event["name"] != "step 3"]
    write_trace(tmp_path / name, unmarked, None, BASE_NS)
    answer = answered(tmp_path)
    assert [row["step"] for row in answer["steps"]] == [step]
    assert [row["steps"] for row in answer["coverage"]["reports"]] == [[step]]


def test_no_number_in_a_manifest_is_taken_for_so_many_steps(tmp_path: Path) -> None:
    name = "trace.json"
    unmarked = [event for event in events("a", "b") if event["name"] != "step 3"]
    write_trace(tmp_path / name, unmarked, None, BASE_NS)
    for stop in (2 * 10**9, 10**6):
        row = {"path": name, "start": 5, "stop": stop, "rank": 2**62, "pid": -1}
        (tmp_path / "manifest.json").write_text(json.dumps({"reports": [row]}))
        answer = answered(tmp_path)
        assert [row["steps"] for row in answer["coverage"]["reports"]] == [[5]]
        assert [row["rank"] for row in answer["ranks"]] == [0]


# What tools write by themselves: worker, rank, first step, and the rank where the trace itself tells none
NATIVE = [
    # vllm.distributed.utils.get_worker_rank_suffix, alone and after a prefix; earlier an engine's id
    ("dp0_pp0_tp1_dcp0_ep1_rank1.1790857026000000000.pt.trace.json.gz", ("worker", 1, None, None)),
    ("warmup_dp0_pp0_tp1_dcp0_ep1_rank1.1790857026000000000.pt.trace.json.gz", ("warmup", 1, None, None)),
    ("a3f9c-rank-1.1790857026000000000.pt.trace.json.gz", ("a3f9c", 1, None, None)),
    # sglang.srt.managers.scheduler_profiler_mixin: <profile id>-TP-1, others where they are more than one
    ("1790857026.1234567-TP-1.trace.json.gz", ("worker", None, None, 1)),
    ("1790857026.1234567-TP-1-DP-0-PP-0-EP-1.trace.json.gz", ("worker", None, None, 1)),
    ("1790857026.1234567-TP-1-DP-1-PP-0-EP-1.trace.json.gz", ("dp1", None, None, 1)),
    ("warm-1790857026.1-TP-0-DECODE.trace.json.gz", ("warm", None, None, 0)),
    # verl.utils.profiler.torch_profile.build_trace_basename, and the name of earlier versions
    (
        "actor_train_step3_rank1-of-4_tp1-pp0-dp0_pid123_20261123123456789_part1.json.gz",
        ("actor_train", 1, 3, None),
    ),
    ("actor/prof_rank-1.json.gz", ("actor", 1, None, 1)),
    # accelerate.utils.constants.PROFILE_PATTERN_NAME (TRL, too); Megatron-LM; torchtitan
    ("profile_1.json", ("worker", None, None, 1)),
    ("torch_profile/rank-1.json.gz", ("worker", 1, None, 1)),
    ("iteration_10/rank1_trace.json", ("worker", 1, None, None)),
    # Kineto inside Meta, as HolisticTraceAnalysis ships it
    ("rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", ("worker", 0, None, None)),
    # by hand
    ("trace_1.json", ("worker", None, None, 1)),
    ("1/trace.json", ("worker", None, None, 1)),
    ("torch_1/profile.json.gz", ("worker", None, None, 1)),
    ("Qwen1.5-0.5B.json.gz", ("Qwen1.5-0.5B", None, None, None)),
    ("Qwen1.5-0.5B_rank1.json.gz", ("Qwen1.5-0.5B", 1, None, None)),
    ("h100_qwen1.5_0.5b.json.gz", ("h100_qwen1.5_0.5b", None, None, None)),
    # nsys: its default, and -o profile_%p
    ("report1.nsys-rep", ("worker", None, None, None)),
    ("profile_1234567.nsys-rep", ("worker", None, None, None)),
]


@pytest.mark.parametrize(("path", "told"), NATIVE)
def test_what_a_tool_calls_its_reports(path: str, told: tuple[Any, ...]) -> None:
    found = told_by(PurePath(path))
    assert (found.worker, found.rank, found.start, found.ordinal) == told


@pytest.mark.parametrize(
    "names",
    [
        [f"dp0_pp0_tp{r}_dcp0_ep{r}_rank{r}.179085702600000000{r}.pt.trace.json.gz" for r in range(2)],
        [f"1790857026.12-TP-{r}.trace.json.gz" for r in range(2)],
        [f"{r}/trace.json" for r in range(2)],
        [f"trace_{r}.json" for r in range(2)],
        [f"megatron_policy_worker/{r}/gpu7_100.1790857026000000000.pt.trace.json.gz" for r in range(2)],
    ],
)
def test_ranks_told_by_names_alone_are_ranks(tmp_path: Path, names: list[str]) -> None:
    """Equal pids, as in containers, and traces that tell no rank: such ranks were folded into one."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        write_trace(tmp_path / name, events("generation", "train"), None, BASE_NS)
    answer = answered(tmp_path)
    worker = "megatron_policy_worker" if "megatron" in names[0] else "worker"
    assert [(r["worker"], r["rank"]) for r in answer["ranks"]] == [(worker, 0), (worker, 1)]
    assert answer["coverage"]["reports"][1]["rank"] == 1


def test_what_a_trace_tells_outweighs_a_bare_number(tmp_path: Path) -> None:
    """The number may be that of an iteration."""
    told = {"rank": 0, "world_size": 2}
    write_trace(tmp_path / "trace_7.json", events("a", "b"), None, BASE_NS, distributedInfo=told)
    assert [r["rank"] for r in answered(tmp_path)["ranks"]] == [0]


def test_two_files_of_one_name_are_never_folded_silently(tmp_path: Path) -> None:
    for name in ("tmp/trace.json", "trace.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_trace(tmp_path / name, events("generation", "train"), None, BASE_NS, host_name="gpu7")
    answer = answered(tmp_path)
    assert len(answer["ranks"]) == 2 and len({r["worker"] for r in answer["ranks"]}) == 2
    said = answer["findings"][0]
    assert said["kind"] == "coverage" and "tmp/trace.json and trace.json were taken" in said["text"]
    assert "<worker>_rank<number>" in said["text"]


def test_a_report_that_is_named_after_its_host_is_of_no_worker_of_its_own(tmp_path: Path) -> None:
    """`nsys profile -o %h_%p`."""
    for rank, host in enumerate(("gpu7", "gpu8")):
        write_trace(
            tmp_path / f"{host}_100.json",
            events("generation", "train"),
            None,
            BASE_NS,
            host_name=host,
            distributedInfo={"rank": rank, "world_size": 2},
        )
    assert [(r["worker"], r["rank"]) for r in answered(tmp_path)["ranks"]] == [("worker", 0), ("worker", 1)]


@pytest.mark.parametrize(
    "names",
    [
        ["gpu7_100.1790857026000000000.pt.trace.json.gz", "gpu7_101.1790857026000000001.pt.trace.json.gz"],
        ["rank0_trace.json.gz", "rank1_trace.json.gz"],
        ["trace_rank0.json", "trace_rank1.json"],
    ],
)
def test_ranks_of_one_worker_are_not_workers_of_their_own(tmp_path: Path, names: list[str]) -> None:
    """The phases lie crosswise: two workers would stand idle for one another, two ranks do not."""
    for rank, name in enumerate(names):
        phases = ("generation", "train")[:: 1 if rank else -1]
        shared = {"rank": rank, "world_size": 2}
        write_trace(tmp_path / name, events(*phases), None, BASE_NS, host_name="gpu7", distributedInfo=shared)
    answer = answered(tmp_path)
    assert [(r["worker"], r["rank"]) for r in answer["ranks"]] == [("worker", 0), ("worker", 1)]
    assert answer["bubbles"] == [] and not [f for f in answer["findings"] if "stands idle" in f["text"]]


def test_folders_of_exports_and_of_bare_json_hold_reports(tmp_path: Path) -> None:
    write_export(tmp_path / "rank0.sqlite", two_phases(100, "train", "generation"))
    write_trace(tmp_path / "rank1.json", events("train", "generation"), None, BASE_NS)
    (tmp_path / "settings.json").write_text('{"lr": 1}')
    write_trace(tmp_path / "timeline.legacy.json", events("train", "generation"), None, BASE_NS)
    (tmp_path / "report.json").write_text('{"schema": 1, "made_by": "x"}')
    answer = answered(tmp_path)
    assert [r["path"] for r in answer["coverage"]["reports"]] == ["rank0.sqlite", "rank1.json"]
    (tmp_path / "rank0.sqlite").unlink()
    (tmp_path / "rank1.json").unlink()
    with pytest.raises(UsageError, match=r"no reports below it .* and \.json and \.sqlite"):
        answer_of(tmp_path, jobs=1)


def test_an_export_beside_its_report_is_no_second_one(tmp_path: Path) -> None:
    report = tmp_path / "rank0.nsys-rep"
    report.write_bytes(b"x")
    write_export(report.with_suffix(".sqlite"), two_phases(100, "train", "generation"))
    assert [r["path"] for r in answered(tmp_path)["coverage"]["reports"]] == ["rank0.nsys-rep"]


@pytest.mark.parametrize("name", ["rank0.json", "rank0.pt.trace.json"])
def test_a_trace_that_was_unpacked_beside_itself_is_no_second_one(tmp_path: Path, name: str) -> None:
    for suffix in ("", ".gz"):
        write_trace(tmp_path / f"{name}{suffix}", events("train", "generation"), None, BASE_NS)
    assert [r["path"] for r in answered(tmp_path)["coverage"]["reports"]] == [f"{name}.gz"]


def test_a_real_export_alone_in_a_folder(tmp_path: Path) -> None:
    shutil.copyfile(real("h100_2gpu_part.sqlite"), tmp_path / "profile.sqlite")
    assert [(r["worker"], r["rank"]) for r in answered(tmp_path)["ranks"]] == [("worker", 0), ("worker", 1)]


def test_windows_a_second_apart_are_two(tmp_path: Path) -> None:
    """Two captures of one process that no range and no name numbers."""
    for number in range(2):
        unmarked = [event for event in events("generation", "train") if event["name"] != "step 3"]
        base = BASE_NS + number * 1000 * MS
        name = f"gpu7_100.{number}.pt.trace.json.gz"
        write_trace(tmp_path / name, unmarked, None, base, host_name="gpu7")
    answer = answered(tmp_path)
    assert [(s["step"], s["duration_ns"]) for s in answer["steps"]] == [(1, 100 * MS), (2, 100 * MS)]
    assert len(answer["ranks"]) == 1


@pytest.mark.parametrize("told", [True, False])
def test_an_unknown_host_is_not_the_same_host(tmp_path: Path, told: bool) -> None:
    """Two ranks whose clocks are 37 ms apart: nothing is compared between them."""
    for rank in range(2):
        place = tmp_path / "profiles" / "torch" / "w" / f"rank{rank}"
        host = {"host_name": f"n{rank}"} if told else {}
        write_trace(
            place / f"rank{rank}_trace.json",
            events("train", "generation"),
            None,
            BASE_NS + rank * 37 * MS,
            **host,
        )
    answer = answered(tmp_path)
    assert answer["clocks"]["residual_ns"] is None
    assert [r["host"] for r in answer["ranks"]] == (
        ["n0", "n1"] if told else ["unknown host 1", "unknown host 2"]
    )
    assert {row["duration_ns"] for row in answer["anatomy"]} == {100 * MS}
    assert not [f for f in answer["findings"] if "comes last" in f["text"]]
    path, last = answer["critical_path"], answer["ranks"][-1]["host"]
    assert path["steps"] == [] and f"The clock of {last} is not aligned" in path["untold"]
    assert path_lines(typed(answer).critical_path, []) == [path["untold"]]  # said in the terminal, too


@pytest.mark.parametrize("ahead_ms", [0, -30, 30, 3_600_000])
def test_a_step_is_as_long_as_on_one_clock(tmp_path: Path, ahead_ms: int) -> None:
    """Two hosts whose clocks nothing joins: what lies between them is no part of a step, nor time in which a
    profiler opened.
    """
    for rank, phase in enumerate(("generation", "train")):
        own = [mark("step 3", 0, 100_000), mark(phase, 40_000, 50_000)]
        base = BASE_NS + rank * ahead_ms * MS
        write_trace(tmp_path / f"{phase}_rank0.json", own, None, base, host_name=f"n{rank}")
    answer = answered(tmp_path)
    assert [step["duration_ns"] for step in answer["steps"]] == [100 * MS]
    assert {(row["duration_ns"], row["opening_ns"]) for row in answer["anatomy"]} == {(100 * MS, 0)}


def test_a_run_of_one_node_tells_the_host(tmp_path: Path) -> None:
    for rank in range(2):
        place = tmp_path / "profiles" / "torch" / "w" / f"rank{rank}"
        write_trace(place / f"rank{rank}_trace.json", events("train", "generation"), None, BASE_NS)
    (tmp_path / "run.json").write_text('{"nodes": ["n7"]}')
    answer = answered(tmp_path)
    assert answer["clocks"]["residual_ns"] == 0 and {r["host"] for r in answer["ranks"]} == {"n7"}
    assert answer["critical_path"]["untold"] == "" and answer["critical_path"]["steps"]


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("dp0_pp1_tp1_dcp0_ep1_rank3.1790857026.pt.trace.json.gz", 1),
        ("tp1-pp3-dp0.json.gz", 3),
        ("1790857026.5-TP-1-DP-0-PP-2-EP-1-DECODE.trace.json.gz", 2),
        ("1790857026.5-TP-1.trace.json.gz", None),
        ("policy_worker_rank3_step3-5_n1_7.pt.trace.json.gz", None),
        ("app3_pp.json", None),
    ],
)
def test_the_stage_in_a_name(name: str, stage: int | None) -> None:
    assert stage_in_name(name) == stage


@pytest.mark.parametrize("said", [True, False])
def test_ranks_of_a_longer_stage_are_no_stragglers_where_names_tell_the_stage(
    tmp_path: Path, said: bool
) -> None:
    """Ranks 4 to 7 take longer; as vLLM names them, they are the second of two stages."""
    make_run(tmp_path / "made", ranks=8, generation_ranks=0, slow_node="n1", hosts=2)
    for report in (tmp_path / "made").rglob("*.pt.trace.json.gz"):
        rank = int(report.parent.name.removeprefix("rank"))
        number = rank // 2 + 4 * (rank % 2)  # n1 has the odd ones
        place = f"dp0_pp{number // 4}_tp{number % 4}" if said else f"dp{number // 4}_tp{number % 4}"
        (tmp_path / "read").mkdir(exist_ok=True)
        report.rename(tmp_path / "read" / f"{place}_dcp0_ep0_rank{number}.{rank}790857026.pt.trace.json.gz")
    answer = answer_of(tmp_path / "read", jobs=1, cache=False)
    assert len(answer["ranks"]) == 8 and len({row["worker"] for row in answer["ranks"]}) == 1
    assert [row["node"] for row in answer["stragglers"]] == ([] if said else ["n1"])
