"""Folders of reports that nobody here named: whose they are, which belong together, and on whose clock."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePath
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.nsys_exports import two_phases, write_export
from tests.analyze.output.test_answer import check_sums, validate
from tests.analyze.shared import kernel, mark, real, write_trace

from rlprof_ops.analyze.output.causes import path_lines
from rlprof_ops.analyze.reporting import answer_of
from rlprof_ops.analyze.run.foreign_names import told_by
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
    ],
)
def test_what_a_foreign_name_tells(path: str, told: tuple[Any, ...]) -> None:
    found = told_by(PurePath(path))
    assert (found.worker, found.rank, found.start, found.stop) == told


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
    assert path_lines(path, []) == [path["untold"]]  # said in the terminal, too


def test_a_run_of_one_node_tells_the_host(tmp_path: Path) -> None:
    for rank in range(2):
        place = tmp_path / "profiles" / "torch" / "w" / f"rank{rank}"
        write_trace(place / f"rank{rank}_trace.json", events("train", "generation"), None, BASE_NS)
    (tmp_path / "run.json").write_text('{"nodes": ["n7"]}')
    answer = answered(tmp_path)
    assert answer["clocks"]["residual_ns"] == 0 and {r["host"] for r in answer["ranks"]} == {"n7"}
    assert answer["critical_path"]["untold"] == "" and answer["critical_path"]["steps"]
