"""What the report counts as missing, truncated and unread, in folders that the real harvest has listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")
pytest.importorskip("rich")

from tests.analyze.as_data import answer_of, report, typed
from tests.analyze.fake_run import make_run
from tests.analyze.output.test_answer import validate
from tests.collect.runfolder import RunFolder

from rlprof_ops.analyze.output import run_diff
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
