"""When the report.json of a run folder is still the answer to it, and when the reports are read anew."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from click.testing import CliRunner, Result
from tests.analyze.as_data import report
from tests.analyze.fake_run import make_run

from rlprof_ops.analyze import reporting
from rlprof_ops.analyze.reporting import is_kept, load_answer
from rlprof_ops.cli import cli

NOT_USED = "report.json is not used, "
MISSING = ("policy_worker", "generation_worker")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A job that trains, with the report that somebody made meanwhile."""
    folder = make_run(tmp_path / "4711-logs", ranks=1)
    put_end(folder, "running")
    report(folder, form="json", jobs=1)
    return folder


def put_end(folder: Path, cause: str) -> None:
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"end": {"cause": cause}}))


def harvested(folder: Path, missing: tuple[str, ...] = MISSING) -> None:
    rows = [
        {"id": f"torch/{worker}/rank1/step9-9", "state": "missing", "reason": "training ended before step 9",
         "backend": "torch", "worker": worker, "rank": 1, "start": 9}
        for worker in missing
    ]  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, "complete": False, "captures": rows}))


def judged(before: Path, after: Path) -> Result:
    return CliRunner().invoke(cli, ["diff", str(before), str(after), "-j", "1", "--fail-if", "missing>0"])


def test_a_report_of_a_job_that_trained_does_not_hide_what_is_missing(run: Path, tmp_path: Path) -> None:
    whole = make_run(tmp_path / "4710-logs", ranks=1)
    put_end(run, "driver_exit")
    harvested(run)
    done = judged(whole, run)
    assert done.exit_code == 1, done.output
    assert "failed missing>0: 2 reports missing or unread" in done.stderr
    why = "it was not made of the run.json and manifest.json that are here"
    assert f"rlprof: {run}/{NOT_USED}{why}: the reports are read anew\n" in done.stderr


def test_nobody_knows_what_is_missing_of_a_job_that_nobody_harvested(run: Path, tmp_path: Path) -> None:
    put_end(run, "driver_exit")
    nothing = judged(run, run)
    record = json.loads((run / "run.json").read_text())
    asked = {"captures": [{"backend": "torch", "workers": ["policy_worker"], "steps": "3:6,9"}]}
    (run / "run.json").write_text(json.dumps(record | {"request": asked}))
    done = judged(run, run)
    assert (nothing.exit_code, done.exit_code) == (0, 4), done.output
    assert "not judged missing>0: nobody has harvested the second run" in done.stderr
    harvested(run, missing=())
    assert judged(run, run).exit_code == 0


def test_one_that_is_named_itself_is_taken_as_it_is(run: Path, tmp_path: Path) -> None:
    put_end(run, "driver_exit")
    harvested(run)
    kept = shutil.copy(run / "report.json", tmp_path / "kept.json")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(run / "report.json", elsewhere)
    for named in (run / "report.json", Path(kept), elsewhere):
        done = judged(named, named)
        assert (done.exit_code, done.stderr) == (0, "")


def test_of_a_folder_without_a_job_what_has_come_since_is_read(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (run / "run.json").unlink()
    report(run, form="json", jobs=1)
    assert is_kept(run, run)
    [late] = run.glob("profiles/torch/generation_worker/rank0/*.json.gz")
    shutil.copy(late, late.with_name(late.name.replace("_1000", "_1001")))
    assert not is_kept(run, run) and len(load_answer(run, jobs=1).coverage.reports) == 3
    assert f"{NOT_USED}it was not made of the reports that are here" in capfd.readouterr().err
    shutil.rmtree(run / "profiles")
    assert is_kept(run, run)


def test_while_the_job_goes_on_what_has_come_since_is_read(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch = run / "profiles" / "torch"
    (arrived,) = (torch / "generation_worker").glob("rank0/*")
    (torch / "generation_worker" / "rank1").mkdir()
    shutil.copy(arrived, torch / "generation_worker" / "rank1" / arrived.name.replace("rank0", "rank1"))
    assert len(load_answer(run, jobs=1).coverage.reports) == 3
    assert f"{NOT_USED}no end of the job is recorded yet" in capfd.readouterr().err
    assert not is_kept(run, run)


def test_of_a_job_whose_end_nobody_recorded_a_harvest_tells(run: Path) -> None:
    harvested(run)
    assert load_answer(run, jobs=1).coverage.planned == 2


def test_a_harvest_that_changes_nothing_makes_nothing_anew(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    put_end(run, "driver_exit")
    harvested(run)
    report(run, form="json", jobs=1)
    harvested(run)
    for name in ("run.json", "manifest.json"):
        os.utime(run / name, (4e9, 4e9))  # a storage whose clock is ahead
    capfd.readouterr()
    monkeypatch.setattr(reporting, "answer_of", None)
    assert load_answer(run).coverage.planned == 2 and is_kept(run, run)
    assert capfd.readouterr().err == ""


def test_what_was_harvested_while_reports_were_read_is_not_taken_as_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_end(run, "driver_exit")
    harvested(run)
    found = reporting.summarise_all

    def and_harvested(*args: Any) -> Any:
        harvested(run, MISSING[:1])
        return found(*args)

    monkeypatch.setattr(reporting, "summarise_all", and_harvested)
    report(run, form="json", jobs=1)
    assert not is_kept(run, run)


@pytest.mark.parametrize("kept", ["of an earlier version", "damaged"])
def test_what_does_not_say_what_it_was_made_of_is_not_served(run: Path, kept: str) -> None:
    put_end(run, "driver_exit")
    report(run, form="json", jobs=1)
    assert is_kept(run, run)
    answer = json.loads((run / "report.json").read_text())
    text = json.dumps({key: value for key, value in answer.items() if key != "made_of"})
    (run / "report.json").write_text(text if kept == "of an earlier version" else text[:-9])
    assert not is_kept(run, run)


def test_in_another_folder_it_is_held_against_its_run(run: Path, tmp_path: Path) -> None:
    put_end(run, "driver_exit")
    report(run, form="json", jobs=1, output=tmp_path)
    assert is_kept(tmp_path, run) and not is_kept(tmp_path, tmp_path / "4710-logs")
    harvested(run)
    assert not is_kept(tmp_path, run)
