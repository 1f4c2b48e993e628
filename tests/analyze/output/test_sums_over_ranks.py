"""Sums over ranks and GPUs with the truth known by construction: kernels, bandwidth, findings, idle."""

from __future__ import annotations

import io
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from rich.console import Console
from tests.analyze.as_data import answer_of, typed
from tests.analyze.as_data import report as make_report
from tests.analyze.nsys_exports import Process, write_export
from tests.analyze.output.test_answer import check_sums, validate
from tests.analyze.shared import kernel, launch, mark, write_trace, x

from rlprof_ops.analyze.output.terminal import show
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.process_summary import Summary
from rlprof_ops.analyze.run.summary import summarise_file
from rlprof_ops.analyze.short_names import shortened

BASE_NS = 1_790_857_026_000_000_000


def rank_file(folder: Path, rank: int, events: list[dict[str, Any]], host: str = "n0") -> None:
    name = f"policy_worker_rank{rank}_step3-3_{host}_{1000 + rank}.pt.trace.json"
    place = folder / "profiles/torch/policy_worker" / f"rank{rank}"
    write_trace(
        place / name, events, None, BASE_NS, host_name=host, distributedInfo={"rank": rank, "world_size": 4}
    )


def answered(folder: Path) -> dict[str, Any]:
    answer = answer_of(folder, jobs=1, cache=False)
    validate(answer)
    check_sums(answer)
    return answer


def test_kernels_are_summed_over_ranks_before_any_is_left_out(tmp_path: Path) -> None:
    """4 ranks of 60 kernels: one half is long on ranks 0 and 1, the other on 2 and 3."""
    for rank in range(4):
        events = [mark("step 3", 0, 100_000)]
        for k in range(60):
            long = (k < 30) == (rank < 2)
            events.append(kernel(f"k{k}", 100 + k * 1000, 900.0 if long else 10.0))
        rank_file(tmp_path, rank, events)
    rows = {row["name"]: row for row in answered(tmp_path)["kernels"]}
    assert len(rows) == 60
    assert all(row["count"] == 4 and row["total_ns"] == 2 * (900_000 + 10_000) for row in rows.values())


def test_names_that_are_alike_for_400_letters_stay_apart(tmp_path: Path) -> None:
    twins = ["k" * 584 + end for end in "ab"] + ["q" * 70_000 + end for end in "ab"]
    events = [mark("step 3", 0, 100_000), *(kernel(n, 100 + i * 100, 50.0) for i, n in enumerate(twins))]
    rank_file(tmp_path, 0, events)
    names = [row["name"] for row in answered(tmp_path)["kernels"]]
    assert len(names) == len(set(names)) == 4 and max(map(len, names)) <= 400
    assert shortened("short") == "short" and len(shortened("y" * 9000)) == 2000


def test_bandwidth_is_of_the_transfer_without_the_waiting(tmp_path: Path) -> None:
    """Ten all-reduces of 8 MB over 4 ranks that take 1 ms; three ranks come 0.5 ms earlier and wait."""
    says = {
        "Collective name": "allreduce", "dtype": "Float", "Group size": 4,
        "In msg nelems": 2_000_000, "Out msg nelems": 2_000_000,
        "Process Group Name": "0", "Process Group Description": "default_pg",
    }  # fmt: skip
    for rank in range(4):
        early = 0.0 if rank == 3 else 500.0
        events = [mark("step 3", 0, 100_000)]
        for i in range(10):
            begin = 1000 + i * 5000
            events.append(launch(begin - 800, i + 1))
            events.append(
                kernel("ncclDevKernel_AllReduce", begin - early, 1000 + early, 20, 0, i + 1, **says)
            )
        rank_file(tmp_path, rank, events)
    (row,) = answered(tmp_path)["collectives"]
    assert row["transfer_ns"] == 1_000_000 and row["total_ns"] == 10 * (3 * 1_500_000 + 1_000_000)
    assert row["algorithm_gb_per_s"] == 8.0 and row["bus_gb_per_s"] == 12.0  # 2 (n - 1) / n of it


def test_bandwidth_of_one_rank_goes_by_the_shortest_call_of_a_size(tmp_path: Path) -> None:
    events = [mark("step 3", 0, 100_000)]
    for i, (elements, length) in enumerate([(1_000_000, 500.0), (1_000_000, 2000.0), (4_000_000, 2000.0)]):
        says = {"Collective name": "broadcast", "dtype": "Float", "In msg nelems": elements, "Group size": 4}
        events.append(kernel("ncclDevKernel_Broadcast", 1000 + i * 5000, length, 20, 0, i + 1, **says))
    rank_file(tmp_path, 0, events)
    (row,) = answered(tmp_path)["collectives"]
    assert row["algorithm_gb_per_s"] == 8.0  # 24 MB in 0.5 + 0.5 + 2 ms


def test_findings_are_of_one_gpu_and_not_of_all_together(tmp_path: Path) -> None:
    """Two GPUs in one process, each with 40 ms of exposed communication in a step of 100 ms."""
    events = [mark("step 3", 0, 100_000), mark("train", 0, 100_000)]
    for device in (0, 1):
        events.append(kernel("gemm", 0, 50_000.0, device=device))
        events.append(kernel("ncclDevKernel_AllReduce", 50_000, 40_000.0, 20, device))
    rank_file(tmp_path, 0, events)
    (text,) = [f["text"] for f in answered(tmp_path)["findings"] if f["kind"] == "communication"]
    assert "40 %" in text and "40.0 ms a step" in text


def test_idle_has_a_cause_outside_of_what_the_profiler_calls_its_window(tmp_path: Path) -> None:
    """The profiler's own span is 1 ms of a step of 10 s."""
    events = [
        x("Trace", "PyTorch Profiler (0)", 5_000_000, 1000.0, "Spans", "PyTorch Profiler"),
        mark("step 3", 0, 10_000_000),
        kernel("k", 5_000_100, 500.0),
    ]
    rank_file(tmp_path, 0, events)
    (row,) = answered(tmp_path)["anatomy"]  # the sums are checked there
    assert sum(row["gpu_idle"].values()) == 10_000_000_000 - 500_000


@pytest.mark.timed
@pytest.mark.parametrize("text", ["x", "execute_context_", "step ", "a b:", "_/"])
def test_a_range_name_of_64_kib_costs_nothing(tmp_path: Path, text: str) -> None:
    name = (text * 65536)[:65536]
    rank_file(tmp_path, 0, [mark("step 3", 0, 1000), mark(name, 1, 500), kernel(name, 10, 10.0)])
    begun = time.process_time()
    make_report(tmp_path, output=tmp_path, jobs=1, cache=False)
    assert time.process_time() - begun < 5


@pytest.mark.timed
def test_many_steps_cost_in_proportion(tmp_path: Path) -> None:
    cost = []
    for count in (1000, 4000):
        events = []
        for i in range(count):
            events += [mark(f"ProfilerStep#{i}", i * 100, 99), mark("train", i * 100 + 1, 50)]
            events.append(kernel("k", i * 100 + 5, 20.0))
        rank_file(tmp_path / str(count), 0, events)
        begun = time.process_time()
        answer = answer_of(tmp_path / str(count), jobs=1, cache=False)
        cost.append(time.process_time() - begun)
        assert len(answer["steps"]) == count
    assert cost[1] < 8 * cost[0] + 1  # 4 where it is in proportion, 16 where it is quadratic


def test_numbers_are_whole_at_80_columns(tmp_path: Path) -> None:
    events = [mark("step 3", 0, 100_000), mark("policy_and_reference_logprobs_of_all", 0, 90_000)]
    events += [
        kernel("void at::native::vectorized_elementwise_kernel" * 3, 100 + i, 0.9) for i in range(1234)
    ]
    rank_file(tmp_path, 0, events)
    out = io.StringIO()
    show(typed(answered(tmp_path)), Console(file=out, width=80))
    (line,) = [line for line in out.getvalue().splitlines() if "void at::" in line]
    assert "1.11 ms" in line and "100 %" in line and "1,234" in line


def test_negative_times_are_times(tmp_path: Path) -> None:
    """Times before the base are normal where a trace's base is later than its first event."""
    events = [mark("step 3", -5000.5, 9000), mark("train", -5000, 8000), kernel("k", -4000.25, 1000.5)]
    rank_file(tmp_path, 0, events)
    answer = answered(tmp_path)
    (row,) = answer["anatomy"]
    assert answer["t0_ns"] == BASE_NS - 5_000_500 and row["duration_ns"] == 9_000_000
    assert row["gpu"]["busy_ns"] == 1_000_500


def test_ranges_of_an_export_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """200,000 ranges in two ways of naming, as columns: no object a row."""
    path = write_export(tmp_path / "r.sqlite", Process(100, (("step 3", 0, 10**9),)))
    c = sqlite3.connect(path)
    c.execute("insert into StringIds values(7, 'registered')")
    thread = (0x1000000 | 100) << 24 | 100
    rows = []
    for i in range(200_000):
        said = (None, 7) if i % 2 else (f"inline {i % 10}", None)
        rows.append((i * 1000, i * 1000 + 400, 59, said[0], thread, said[1], 0))
    c.executemany("insert into NVTX_EVENTS values(?,?,?,?,?,?,?)", rows)
    c.commit()
    c.close()
    report = ReportFile("r.sqlite", "nsight", "w", 0, "", None, 3, 4, None, 1)
    found = summarise_file(tmp_path, report, cache=False)
    (summary,) = found
    assert isinstance(summary, Summary)
    phases = {p.phase: (p.stretches, p.duration_ns) for p in summary.phases}
    assert phases["registered"] == (100_000, 100_000 * 400)
    assert {name for name in phases if name != "registered"} == {f"inline {i}" for i in (0, 2, 4, 6, 8)}
