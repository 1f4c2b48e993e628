"""Reports that hold several processes: each is a rank of its own, and its launches are its own."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.nsys_exports import MS, Process, two_phases, write_export
from tests.analyze.output.test_answer import check_sums, validate
from tests.analyze.shared import real
from tests.real_nsys import profile

from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.process_summary import Summary
from rlprof_ops.analyze.run.summary import summarise_file
from rlprof_ops.analyze.timeline import make


def summaries(path: Path, rank: int | None = None, pid: int | None = None) -> list[Summary]:
    report = ReportFile(path.name, "nsight", "w", rank, "", pid, 3, 4, None, path.stat().st_size)
    found = summarise_file(path.parent, report, cache=False)
    assert all(isinstance(s, Summary) for s in found)
    return [s for s in found if isinstance(s, Summary)]


def by_phase(summary: Summary) -> dict[tuple[str, str], tuple[int, int]]:
    return {(k.phase, k.name): (k.count, k.total_ns) for k in summary.kernels}


def test_equal_launch_numbers_of_two_processes_do_not_mix(tmp_path: Path) -> None:
    """The second process does the same in the other order: by correlation alone, one takes all."""
    a = two_phases(100, "train", "generation")
    b = two_phases(200, "generation", "train", begin=3 * MS)
    first, second = summaries(write_export(tmp_path / "r.sqlite", a, b))
    half = 33 * (20 * MS // 33 // 2)
    truth = {("train", "train_kernel"): (33, half), ("generation", "generation_kernel"): (33, half)}
    assert by_phase(first) == by_phase(second) == truth
    assert (first.pid, first.rank, second.pid, second.rank) == (100, 0, 200, 1)
    alone = summaries(write_export(tmp_path / "b.sqlite", b))[0]
    assert second.devices == alone.devices and second.phases == alone.phases


def test_both_are_ranks_of_the_answer_and_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "profiles" / "nsight" / "w" / "rank2"
    folder.mkdir(parents=True)
    report = folder / "w_rank2_step3-3_n0_100.nsys-rep"
    report.write_bytes(b"x")
    write_export(
        report.with_suffix(".sqlite"),
        two_phases(100, "train", "generation"),
        two_phases(200, "generation", "train"),
    )
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    check_sums(answer)
    assert [(r["worker"], r["rank"], r["pid"], r["told_apart"]) for r in answer["ranks"]] == [
        ("w", 2, 100, True),
        ("w", 2, 200, True),
    ]
    assert [r["processes"] for r in answer["coverage"]["reports"]] == [2]
    assert len(answer["anatomy"]) == 2


def test_inner_workers_of_a_server_are_rows_of_their_own(tmp_path: Path) -> None:
    """Each has said which part of the engine it is. Both are one role: neither waits for the other."""
    run, events = tmp_path / "profiles/nsight/rollout/rank0", tmp_path / "nodes/n0/events"
    run.mkdir(parents=True)
    events.mkdir(parents=True)
    report = run / "rollout_rank0_step3-3_n0_90.nsys-rep"
    report.write_bytes(b"x")
    write_export(
        report.with_suffix(".sqlite"),
        two_phases(100, "train", "generation"),
        two_phases(200, "generation", "train"),
    )
    said = [
        ("n0", 100, "rollout_tp0"),
        ("n0", 200, "rollout_tp1"),
        ("n1", 100, "rollout_tp7"),
        ("n0", 90, "x_tp0"),
    ]
    for host, pid, worker in said:
        row = {"event": "engine_worker", "pid": pid, "host": host, "worker": worker}
        (events / f"notes_{host}_{pid}.jsonl").write_text(json.dumps(row) + "\n")
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    check_sums(answer)
    assert [(r["worker"], r["rank"], r["pid"], r["told_apart"]) for r in answer["ranks"]] == [
        ("rollout_tp0", 0, 100, False),
        ("rollout_tp1", 0, 200, False),
    ]
    assert {row["worker"] for row in answer["phases"]} == {"rollout_tp0", "rollout_tp1"}
    assert answer["bubbles"] == [] and not any(f["kind"] == "bubble" for f in answer["findings"])
    made = make.make(tmp_path, tmp_path)
    assert made.ranks == 2


def test_children_without_ranges_are_in_the_phases_of_their_parent(tmp_path: Path) -> None:
    """vLLM's engine cores launch the work, the actor around them has the ranges and no GPU."""
    whole = two_phases(100, "generation", "train")
    children = [Process(pid, (), whole.work) for pid in (300, 200)]
    found = summaries(write_export(tmp_path / "r.sqlite", Process(100, whole.ranges), *children), rank=4)
    assert [(s.pid, s.rank) for s in found] == [(200, 4), (300, 4)]
    for summary in found:
        assert {phase for phase, _ in by_phase(summary)} == {"generation", "train"}
        assert [(p.phase, p.duration_ns) for p in summary.phases] == [
            ("generation", 20 * MS),
            ("train", 20 * MS),
        ]


def test_one_child_that_works_is_the_rank_that_was_asked_for(tmp_path: Path) -> None:
    whole = two_phases(100, "generation", "train")
    export = write_export(tmp_path / "r.sqlite", Process(100, whole.ranges), Process(200, (), whole.work))
    (found,) = summaries(export, rank=0, pid=100)
    assert found.pid == 100 and {phase for phase, _ in by_phase(found)} == {"generation", "train"}


def test_two_real_processes_with_launch_numbers_made_equal(tmp_path: Path) -> None:
    """The numbers of the second process are moved onto those of the first; no result may change."""
    source = real("h100_2gpu_part.sqlite")
    collided = tmp_path / "r.sqlite"
    shutil.copyfile(source, collided)
    collided.chmod(0o644)
    c = sqlite3.connect(collided)
    tables = [f"CUPTI_ACTIVITY_KIND_{k}" for k in ("KERNEL", "MEMCPY", "MEMSET")]
    pids = sorted({row[0] for t in tables for row in c.execute(f"select distinct globalPid from {t}")})
    assert len(pids) == 2
    low = [
        c.execute(f"select min(correlationId) from {tables[0]} where globalPid={p}").fetchone()[0]
        for p in pids
    ]
    for table in tables:
        c.execute(
            f"update {table} set correlationId = correlationId - ? where globalPid = ?",
            (low[1] - low[0], pids[1]),
        )
    c.execute(
        "update CUPTI_ACTIVITY_KIND_RUNTIME set correlationId = correlationId - ? where globalTid >> 24 = ?",
        (low[1] - low[0], pids[1] >> 24),
    )
    c.commit()
    c.close()
    before, after = summaries(source), summaries(collided)
    assert [s.pid for s in before] == [s.pid for s in after] == [p >> 24 & 0xFFFFFF for p in pids]
    for a, b in zip(before, after, strict=True):
        assert a.kernels == b.kernels and a.devices == b.devices and a.phases == b.phases
    c = sqlite3.connect(f"file:{source}?mode=ro&immutable=1", uri=True)
    for pid, summary in zip(pids, before, strict=True):
        rows = [
            c.execute(f"select count(*), sum(end-start) from {t} where globalPid={pid}").fetchone()
            for t in tables
        ]
        assert sum(d.kernels for d in summary.devices) == sum(n for n, _ in rows)
        assert sum(k.total_ns for k in summary.kernels) == sum(total or 0 for _, total in rows)


@pytest.mark.nsys
def test_a_real_capture_of_two_processes(tmp_path: Path) -> None:
    """One nsys around a parent and its child, each with ranges of its own and the phases in another order."""
    pytest.importorskip("nvtx")
    script = tmp_path / "two.py"
    script.write_text(
        "import nvtx, os, subprocess, sys, time\n"
        "child = len(sys.argv) > 1\n"
        "if not child: started = subprocess.Popen([sys.executable, __file__, 'child'])\n"
        "with nvtx.annotate('step 3', domain='rlprof'):\n"
        "    for phase, s in (('train', 0.3), ('generation', 0.1))[:: 1 if child else -1]:\n"
        "        before = time.time_ns()\n"
        "        with nvtx.annotate(phase, domain='rlprof'):\n"
        "            begun = time.time_ns(); time.sleep(s); ended = time.time_ns()\n"
        # In one piece: unbuffered, `print` writes word by word, and the other process's come between.
        "        told = f'{os.getpid()} {phase} {before} {begun} {ended} {time.time_ns()}\\n'\n"
        "        sys.stdout.write(told); sys.stdout.flush()\n"
        "if not child: started.wait()\n"
    )
    out = tmp_path / "w_rank0_step3-3_n1_77.nsys-rep"
    done = profile(out, [sys.executable, script])
    truth: dict[int, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) == 6 and words[1] in ("train", "generation"):
            truth.setdefault(int(words[0]), {})[words[1]] = [int(word) for word in words[2:]]
    assert len(truth) == 2
    found = {s.pid: s for s in summaries(out, rank=0)}
    assert set(found) == set(truth)
    for pid, said in truth.items():
        assert {p.phase for p in found[pid].phases} == {"train", "generation"}
        for phase in found[pid].phases:
            before, begun, ended, after = said[phase.phase]
            assert 0.98 * (ended - begun) <= phase.duration_ns <= 1.02 * (after - before) + 5_000_000
            assert before - 5_000_000 < int(phase.when.start[0]) < begun + 5_000_000


def test_processes_of_one_report_share_a_host_that_nothing_names(tmp_path: Path) -> None:
    made = [two_phases(100, "generation", "train"), two_phases(200, "train", "generation")]
    path = write_export(tmp_path / "r.sqlite", *made)
    with sqlite3.connect(path) as c:
        c.execute("delete from TARGET_INFO_SYSTEM_ENV where name='Hostname'")
    c.close()
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert [host["method"] for host in answer["clocks"]["hosts"]] == ["reference"]
    assert "not aligned" not in answer["critical_path"]["untold"]
