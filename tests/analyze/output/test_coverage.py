"""What the report counts as missing, truncated and unread, in folders that the real harvest has listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")
pytest.importorskip("rich")

from tests.analyze.as_data import answer_of, report, typed
from tests.analyze.fake_run import make_run
from tests.analyze.output.test_answer import validate
from tests.analyze.shared import mark, write_trace
from tests.collect.runfolder import RunFolder

from rlprof_ops.analyze.output import run_diff
from rlprof_ops.analyze.run.job_ranks import MOST_LISTED
from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.collect.harvest.run_harvest import harvest

WORKER = "policy_worker"
RANKS = 4
REQUEST = {"captures": [{"backend": "torch", "workers": [WORKER], "steps": "3:6"}]}


def run_folder(root: Path, last_step: int, closed: bool) -> Path:
    """A job of four ranks whose traces of steps 3 to 5 are home and can be read."""
    make_run(root, ranks=RANKS, generation_ranks=0)
    run = RunFolder(root, REQUEST, nodes=("n0", "n1"))
    for rank in range(RANKS):
        events = [(word, "torch", 3, 6, None) for word in ("opened", "closed")[: 1 + closed]]
        run.worker(
            WORKER, rank, node=f"n{rank % 2}", pid=1000 + rank, windows=events, last_step=last_step,
            world_size=RANKS,
        )  # fmt: skip
    run.write(world={WORKER: RANKS})
    return root


def lead(answer: dict[str, Any]) -> str:
    """What the findings say of coverage; empty when they say nothing."""
    return " ".join(f["text"] for f in answer["findings"] if f["kind"] == "coverage")


def states(manifest: Manifest) -> list[str]:
    return [capture.state for capture in manifest.captures]


def test_truncated_reports_that_are_read_are_called_truncated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder(tmp_path, last_step=4, closed=False)
    assert states(harvest(tmp_path)) == ["truncated"] * RANKS
    answer = report(tmp_path, jobs=1, cache=False)
    validate(answer)
    coverage = answer["coverage"]
    assert (coverage["planned"], coverage["arrived"], coverage["missing"]) == (RANKS, RANKS, [])
    assert all("was cut short (last step seen: 4)" in row["truncated"] for row in coverage["reports"])
    assert "4 reports are truncated" in lead(answer) and "missing" not in lead(answer)
    assert capsys.readouterr().out.count("cut short") == RANKS
    assert run_diff.compare(typed(answer), typed(answer)).missing[1] == 0


def test_a_report_that_came_home_after_the_manifest_is_not_missing(tmp_path: Path) -> None:
    """The head lists the run before salvage has brought the reports of a lost node."""
    run_folder(tmp_path, last_step=8, closed=True)
    elsewhere = tmp_path / "profiles" / "torch" / WORKER / "rank2"
    elsewhere.rename(tmp_path / "on-its-node")
    assert states(harvest(tmp_path)) == ["ok", "ok", "missing", "ok"]
    before = answer_of(tmp_path, jobs=1, cache=False)
    assert lead(before).startswith("1 planned report is missing;")
    assert (before["coverage"]["arrived"], len(before["coverage"]["missing"])) == (RANKS - 1, 1)

    (tmp_path / "on-its-node").rename(elsewhere)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert [row["rank"] for row in answer["coverage"]["reports"]] == [0, 1, 2, 3]
    assert (answer["coverage"]["arrived"], answer["coverage"]["missing"], lead(answer)) == (RANKS, [], "")


def test_a_truncated_report_that_cannot_be_read_is_counted_once(tmp_path: Path) -> None:
    run_folder(tmp_path, last_step=4, closed=False)
    [lost] = (tmp_path / "profiles" / "torch" / WORKER / "rank3").iterdir()
    lost.write_bytes(b"no gzip")
    assert states(harvest(tmp_path)) == ["truncated"] * RANKS
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert "missing" not in lead(answer) and "1 report could not be read" in lead(answer)
    assert "3 reports are truncated" in lead(answer)
    assert answer["coverage"]["missing"] == [] and len(answer["coverage"]["unread"]) == 1
    assert run_diff.compare(typed(answer), typed(answer)).missing[1] == 1


def test_a_file_without_a_byte_is_counted_once(tmp_path: Path) -> None:
    run_folder(tmp_path, last_step=8, closed=True)
    [lost] = (tmp_path / "profiles" / "torch" / WORKER / "rank3").iterdir()
    lost.write_bytes(b"")
    harvest(tmp_path)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert lead(answer).startswith("1 report could not be read;")


def without(folder: Path, *ranks: int) -> None:
    for rank in ranks:
        [report] = (folder / "profiles" / "torch" / WORKER / f"rank{rank}").iterdir()
        report.unlink()


def shown(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "160")
    report(folder, output=folder, jobs=1, cache=False)
    return capsys.readouterr().out


def test_a_rank_that_the_traces_know_of_and_that_has_no_report_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, ranks=4, generation_ranks=0, tell_world=True)
    whole = answer_of(tmp_path, jobs=1, cache=False)
    assert whole["coverage"]["ranks"] == [
        {"worker": WORKER, "ranks": 4, "world": 4, "missing": [], "missing_more": 0}
    ]
    assert lead(whole) == ""
    without(tmp_path, 2)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    assert answer["coverage"]["ranks"] == [
        {"worker": WORKER, "ranks": 3, "world": 4, "missing": [2], "missing_more": 0}
    ]
    assert lead(answer) == (
        "3 of 4 ranks of policy_worker were read, all but rank 2: if the others wait for it, nothing here can"
        " name it."
    )
    said = shown(tmp_path, capsys, monkeypatch)
    assert "3 reports read · 3 of 4 ranks ·" in said
    assert any("train" in line and "3 of 4" in line for line in said.splitlines())


def test_ranks_that_were_left_out_on_purpose_are_counted_and_not_missed(tmp_path: Path) -> None:
    """Without a manifest: where most are there, and one is not, nobody has left it out."""
    make_run(tmp_path, ranks=4, generation_ranks=0, tell_world=True)
    without(tmp_path, 1, 2, 3)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert answer["coverage"]["ranks"] == [
        {"worker": WORKER, "ranks": 1, "world": 4, "missing": [1, 2, 3], "missing_more": 0}
    ]
    assert lead(answer) == ""


def test_the_manifest_tells_which_ranks_were_asked_for(tmp_path: Path) -> None:
    run_folder(tmp_path, last_step=8, closed=True)
    without(tmp_path, 3)
    harvest(tmp_path)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert answer["coverage"]["ranks"] == [
        {"worker": WORKER, "ranks": 3, "world": 4, "missing": [3], "missing_more": 0}
    ]
    assert "1 planned report is missing" in lead(answer) and "all but rank 3" in lead(answer)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["captures"] = [row for row in manifest["captures"] if row["rank"] != 3]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert answer["coverage"]["ranks"] == [
        {"worker": WORKER, "ranks": 3, "world": 4, "missing": [], "missing_more": 0}
    ]
    assert lead(answer) == ""


def test_a_world_that_several_workers_may_share_is_no_workers_size(tmp_path: Path) -> None:
    """Two halves of one world under two names; engines whose ranks each begin anew."""
    make_run(tmp_path, ranks=4, generation_ranks=0, tell_world=True)
    torch = tmp_path / "profiles" / "torch"
    for rank in (2, 3):
        (torch / WORKER / f"rank{rank}").rename(torch / f"other{rank}")
        [report] = (torch / f"other{rank}").iterdir()
        report.rename(torch / f"other{rank}" / report.name.replace(WORKER, "critic_worker"))
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert {row["worker"] for row in answer["ranks"]} == {WORKER, "critic_worker"}
    assert answer["coverage"]["ranks"] == []
    renamed = tmp_path / "engines"
    make_run(renamed, ranks=4, generation_ranks=0, tell_world=True)
    for rank in (0, 1, 2, 3):
        [report] = (renamed / "profiles" / "torch" / WORKER / f"rank{rank}").iterdir()
        report.rename(report.with_name(report.name.replace(f"_rank{rank}_", f"_rank{rank + 4}_")))
    assert answer_of(renamed, jobs=1, cache=False)["coverage"]["ranks"] == []


def test_a_world_of_any_size_is_counted_and_not_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of every missing rank: two billion took all memory, three million made a page of 23 MB."""
    made = {"rank": 0, "world_size": 2 * 10**9}
    write_trace(tmp_path / "w_rank0.json", [mark("step 3", 0, 100)], None, 10**18, distributedInfo=made)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    [row] = answer["coverage"]["ranks"]
    assert (row["ranks"], row["world"], row["missing"][:2]) == (1, 2 * 10**9, [1, 2])
    assert len(row["missing"]) == MOST_LISTED and row["missing_more"] == 2 * 10**9 - 1 - MOST_LISTED
    assert "1 report read · 1 of 2000000000 ranks ·" in shown(tmp_path, capsys, monkeypatch)
    assert (tmp_path / "report.html").stat().st_size < 2 << 20


def test_a_manifest_counts_the_missing_ranks_that_it_asked_for(tmp_path: Path) -> None:
    write_trace(tmp_path / "w_rank0.json", [mark("step 3", 0, 100)], None, 10**18)
    rows = [{"worker": "w", "rank": rank} for rank in (-1, *range(1500), 10**13)]
    manifest = {"schema": 1, "world": {"w": 10**12, "v": 10**400}, "captures": rows}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    [row] = answer_of(tmp_path, jobs=1, cache=False)["coverage"]["ranks"]
    assert (row["missing"], row["missing_more"]) == ([*range(1, MOST_LISTED + 1)], 1499 - MOST_LISTED)
