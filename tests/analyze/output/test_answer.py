"""The whole way from a run folder to report.json: every sum conserved, the straggler named, nobody else."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("msgspec")
pytest.importorskip("rich")

from tests.analyze.as_data import answer_of, report  # noqa: E402
from tests.analyze.fake_run import PLAN, SLOW_US, STEP_US, make_run  # noqa: E402
from tests.analyze.shared import TORCH_FILES, real  # noqa: E402

from rlprof_ops.errors import UsageError  # noqa: E402

MS = 1_000_000


def rows_of(answer: dict[str, Any], worker: str) -> list[dict[str, Any]]:
    return [row for row in answer["anatomy"] if answer["ranks"][row["rank"]]["worker"] == worker]


def check_sums(answer: dict[str, Any]) -> None:
    for row in answer["anatomy"]:
        assert sum(p["duration_ns"] for p in row["phases"]) + row["idle_ns"] == row["duration_ns"]
        rest = row["unexplained_ns"] + row["uncaptured_ns"]
        assert sum(row["waiting_ns"].values()) + rest == row["idle_ns"]
        told = (row["idle_ns"], row["unexplained_ns"], row["uncaptured_ns"], *row["waiting_ns"].values())
        assert min(told) >= 0
        for gpu, idle in [
            (row["gpu"], row["gpu_idle"]),
            *((p.get("gpu"), p.get("gpu_idle")) for p in row["phases"]),
        ]:
            if gpu:
                assert gpu["busy_ns"] + gpu["idle_ns"] == gpu["window_ns"]
                assert (
                    gpu["compute_ns"] + gpu["exposed_communication_ns"] + gpu["exposed_memcpy_ns"]
                    == gpu["busy_ns"]
                )
                assert sum(idle.values()) == gpu["idle_ns"]


def validate(answer: dict[str, Any]) -> None:
    schema = json.loads((files("rlprof_ops.analyze.output") / "report.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(answer)


def test_anatomy_of_a_run_is_what_was_simulated(tmp_path: Path) -> None:
    answer = answer_of(make_run(tmp_path), jobs=1)
    validate(answer)
    check_sums(answer)
    assert [s["step"] for s in answer["steps"]] == [3, 4, 5]
    assert answer["phase_names"] == ["generation", "ref_logprob", "train", "weight_sync"]
    for worker, plan in PLAN.items():
        for row in rows_of(answer, worker):
            assert row["duration_ns"] == round((STEP_US - 500) * 1000)
            got = {answer["phase_names"][p["phase"]]: p["duration_ns"] for p in row["phases"]}
            assert got == {phase: round(length * 1000) for phase, _, length in plan}
    policy = rows_of(answer, "policy_worker")[0]
    assert (
        policy["waiting_ns"]["generation_worker"] == 40 * MS + 2 * MS
    )  # generation, and 96 to 98 ms of its weight sync
    bubble = next(
        b for b in answer["bubbles"] if b["worker"] == "policy_worker" and b["phase"] == "generation"
    )
    assert bubble["mean_ns"] == 40 * MS
    assert answer["weight_sync"][0]["total_ns"] == 7 * MS
    assert answer["stragglers"] == []
    assert answer["findings"] and all(f["text"].endswith(".") for f in answer["findings"])


def test_the_slow_rank_is_named_though_all_phases_last_equally_long(tmp_path: Path) -> None:
    answer = answer_of(make_run(tmp_path, ranks=4, slow_rank=1), jobs=1)
    assert [(answer["ranks"][s["rank"]]["rank"], s["phase"]) for s in answer["stragglers"]] == [(1, "train")]
    assert answer["stragglers"][0]["excess_ns"] == pytest.approx(SLOW_US * 1000, rel=0.02)
    assert any("policy_worker rank 1 on n1 is slow in train" in f["text"] for f in answer["findings"])
    spread = next(p for p in answer["phases"] if p["phase"] == "train")
    assert spread["min_ns"] == spread["max_ns"]  # seen from outside, nobody is slower
    skew = answer["skews"][0]
    assert answer["ranks"][skew["last"]]["rank"] == 1 and skew["last_share"] == 1.0


@pytest.mark.parametrize("ahead_ns", [3_700_000, -250_000_000])
def test_clocks_of_hosts_are_put_on_one_axis(tmp_path: Path, ahead_ns: int) -> None:
    answer = answer_of(make_run(tmp_path, ranks=4, slow_rank=1, offsets_ns={"n1": ahead_ns}), jobs=1)
    clock = next(c for c in answer["clocks"]["hosts"] if c["host"] == "n1")
    assert clock["method"] == "collectives" and abs(clock["offset_ns"] + ahead_ns) < 1000
    assert answer["clocks"]["residual_ns"] is not None and answer["clocks"]["residual_ns"] < 10_000
    starts = {row["start_ns"] for row in answer["anatomy"] if row["step"] == 4}
    assert max(starts) - min(starts) < 10_000
    assert [answer["ranks"][s["rank"]]["rank"] for s in answer["stragglers"]] == [1]


def test_one_and_several_processes_give_the_same(tmp_path: Path) -> None:
    make_run(tmp_path, ranks=3)
    one, two = answer_of(tmp_path, jobs=1, cache=False), answer_of(tmp_path, jobs=2, cache=True)
    for answer in (one, two):
        answer.pop("made_ns")
        for row in answer["coverage"]["reports"]:
            row.pop("seconds")
    assert one == two


def test_every_real_trace_in_one_folder(tmp_path: Path) -> None:
    for name in TORCH_FILES:
        place = tmp_path / "profiles" / "torch" / name.replace(".", "_") / "rank0"
        place.mkdir(parents=True)
        (place / f"{name}.json.gz").symlink_to(real(f"torch/{name}.json.gz"))
    answer = _copied(tmp_path)
    validate(answer)
    check_sums(answer)
    assert len(answer["coverage"]["reports"]) == len(TORCH_FILES) and not answer["coverage"]["unread"]


def _copied(folder: Path) -> dict[str, Any]:
    """Links are not followed by the reader, on purpose; so the real files come as copies."""
    for link in folder.rglob("*.json.gz"):
        data = link.read_bytes()
        link.unlink()
        link.write_bytes(data)
    return answer_of(folder, jobs=1, cache=False)


def test_a_report_that_cannot_be_read_is_a_line_and_not_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path)
    place = tmp_path / "profiles" / "nsight" / "policy_worker" / "rank0"
    place.mkdir(parents=True)
    (place / "policy_worker_rank0_step3-5_n0_1000.nsys-rep").write_bytes(b"")
    (tmp_path / "profiles" / "rocprof_sys").mkdir()
    (tmp_path / "profiles" / "rocprof_sys" / "perfetto-trace.proto").write_bytes(b"x" * 2048)
    traces = list(tmp_path.rglob("generation_worker*.gz"))
    traces[0].write_bytes(traces[0].read_bytes()[:-200])
    answer = report(tmp_path, jobs=1, cache=False)
    said = capsys.readouterr().out
    assert "is empty: the profiler was killed" in answer["coverage"]["unread"][0]["reason"]
    assert [r for r in answer["coverage"]["reports"] if r["truncated"]]
    assert "not read" in said and "truncated" in said and "perfetto-trace.proto (2.0 KiB)" in said
    assert "1 report could not be read" in answer["findings"][0]["text"]
    assert (tmp_path / "report.html").stat().st_size > 10_000 and json.loads(
        (tmp_path / "report.json").read_text()
    )["schema"] == 1


def test_nothing_to_read_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no reports below it") as error:
        answer_of(tmp_path)
    assert "rlprof harvest" in str(error.value)
    with pytest.raises(UsageError, match="no such run folder"):
        answer_of(tmp_path / "absent")


def test_a_run_of_which_nothing_came_home_says_why_in_its_manifests_words(tmp_path: Path) -> None:
    rows = [{"state": "missing", "reason": reason} for reason in ("\x1b[2Jnode n1", "node n1", "b", "c", "d")]
    (tmp_path / "manifest.json").write_text(json.dumps({"captures": [*rows, rows[0], "no row"]}))
    with pytest.raises(UsageError) as error:
        answer_of(tmp_path)
    assert str(error.value).endswith(
        "no report came home: 7 captures planned: \ufffd[2Jnode n1; node n1; b; and 3 reasons more"
    )


def test_the_page_is_safe_from_names_in_traces(tmp_path: Path) -> None:
    make_run(tmp_path)
    report(tmp_path, form="json", jobs=1, cache=False)
    page = (tmp_path / "report.html").read_text()
    assert "<b>run</b>" not in page and "fake &lt;b&gt;run" in page
    assert (
        page.count("<script") == 2
        and "http://" not in page.replace("http://www.w3.org/2000/svg", "")
        and "https://" not in page
    )


def test_analysis_is_not_imported_by_the_command_line() -> None:
    import subprocess

    code = (
        "import sys, rlprof_ops.cli, rlprof_ops.commands.report; print([m for m in ('numpy', 'msgspec',"
        " 'pyarrow', 'jinja2') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_a_step_whose_range_was_lost_is_told_from_the_others(tmp_path: Path) -> None:
    """nsys begins to record a moment after `nsys start` returns: the range of the window's first step may
    be missing.
    """
    make_run(tmp_path, ranks=3, kernels=1)
    for path in tmp_path.rglob("policy_worker_rank1_*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        events = [
            e
            for e in trace["traceEvents"]
            if e["name"] != "step 3" and e["cat"] in ("user_annotation", "cpu_op")
        ]
        path.write_bytes(gzip.compress(json.dumps(trace | {"traceEvents": events}).encode()))
    answer = answer_of(tmp_path, jobs=1, cache=False)
    check_sums(answer)
    rows = {(answer["ranks"][r["rank"]]["rank"], r["step"]): r for r in rows_of(answer, "policy_worker")}
    lost, whole = rows[1, 3], rows[2, 3]
    assert lost["phases"][0]["duration_ns"] == whole["phases"][0]["duration_ns"]
    assert not lost["marked"] and abs(lost["duration_ns"] - whole["duration_ns"]) < 2 * MS


def test_memory_reports_are_summed_up_and_run_nothing(tmp_path: Path) -> None:
    make_run(tmp_path)
    place = tmp_path / "profiles" / "memory" / "policy_worker" / "rank0"
    place.mkdir(parents=True)
    history = [
        {"action": "alloc", "size": 700},
        {"action": "free_completed", "size": 700},
        {"action": "alloc", "size": 100},
    ]
    snapshot = {
        "segments": [{"device": 0, "allocated_size": 400, "total_size": 1000}],
        "device_traces": [history],
    }
    (place / "policy_worker_rank0_step3-3_n0_1000.pickle").write_bytes(pickle.dumps(snapshot))
    (place / "policy_worker_rank0_step4-4_n0_1000.pickle").write_bytes(pickle.dumps(Path("/")))
    memo_of_68_gb = b"\x80\x02}r\xff\xff\xff\xff" + pickle.dumps(snapshot, 2)[3:]
    (place / "policy_worker_rank0_step6-6_n0_1000.pickle").write_bytes(memo_of_68_gb)
    host = {"schema": 1, "pid": 1000, "samples": [[1790857026000000000, 50], [1790857027000000000, 90]]}
    (place / "policy_worker_rank0_step5-5_n0_1000.host-memory.json.gz").write_bytes(
        gzip.compress(json.dumps(host).encode())
    )
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    peaks = {(m["device"], m["allocated_bytes"], m["reserved_bytes"]) for m in answer["memory"]}
    assert {
        (0, 1000, 1000),
        (-1, 90, -1),
    } <= peaks  # 400 at the end, 300 before the last, 1000 before the free
    reasons = [unread["reason"] for unread in answer["coverage"]["unread"]]
    assert ["no pickle of plain data" in reason for reason in reasons] == [True, True]
    assert {s["step"] for s in answer["steps"]} == {3, 4, 5} and len(answer["ranks"]) == 3


def test_segments_that_grow_and_shrink_are_reserved_memory(tmp_path: Path) -> None:
    """As torch tells it with expandable_segments:True."""
    history = [
        {"action": "segment_map", "size": 800},
        {"action": "alloc", "size": 700},
        {"action": "free_completed", "size": 700},
        {"action": "segment_unmap", "size": 700},
    ]
    segments = [{"device": 0, "allocated_size": 0, "total_size": 100}]
    snapshot = {"segments": segments, "device_traces": [history]}
    file = tmp_path / "policy_worker_rank0_step3-3_n0_1000.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    [peak] = answer_of(tmp_path, jobs=1, cache=False)["memory"]
    assert (peak["allocated_bytes"], peak["reserved_bytes"]) == (700, 800)


def test_findings_say_what_to_try_and_where_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = report(make_run(tmp_path, ranks=4, slow_rank=1), jobs=1, cache=False)
    by_kind = {f["kind"]: f for f in answer["findings"]}
    slow = by_kind["straggler"]
    assert answer["ranks"][slow["rank"]]["rank"] == 1 and slow["phase"] == "train"
    assert "share of the data" in slow["advice"] and "asynchronous rollout" in by_kind["bubble"]["advice"]
    assert by_kind["phase"]["advice"] == ""  # long is no fault
    assert "share of the data" in " ".join(capsys.readouterr().out.split())


def test_the_chain_of_a_step_is_told_with_its_slack_and_what_a_change_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The simulated train ends at 90 ms, weight sync of the policy at 96, of generation at 98."""
    answer = report(make_run(tmp_path, ranks=4, slow_rank=1), jobs=1, cache=False)
    validate(answer)
    for chain in answer["critical_path"]["steps"]:
        told = [(link["worker"], link["phase"]) for link in chain["links"]]
        assert told == [
            ("generation_worker", "generation"), ("policy_worker", "ref_logprob"),
            ("policy_worker", "train"), ("generation_worker", "weight_sync"),
        ]  # fmt: skip
        assert sum(link["duration_ns"] for link in chain["links"]) + chain["rest_ns"] == chain["length_ns"]
        assert answer["ranks"][chain["links"][2]["rank"]]["rank"] == 1
    slack = {(s["worker"], s["phase"]): s["tightest_ns"] for s in answer["critical_path"]["slack"]}
    assert slack["policy_worker", "weight_sync"] == 2 * MS and slack["policy_worker", "train"] == 0
    changes = {(w["kind"], w["phase"]): w for w in answer["what_if"]}
    assert changes["faster", "generation"]["saves_ns"] == 8 * MS
    assert changes["like_peers", "train"]["saves_ns"] == pytest.approx(SLOW_US * 1000, rel=0.02)
    said = " ".join(capsys.readouterr().out.split())
    assert "generation of generation_worker 0 40.0 ms → ref_logprob of policy_worker" in said
    assert "generation 20 % faster: step 8.0 % shorter (8.00 ms)" in said
