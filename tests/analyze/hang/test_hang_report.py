"""A hang in the report: its sentence first, and ranks by collective number on the page, from real dumps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlprof_ops.cli import cli

pytest.importorskip("torch")
pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of, report
from tests.analyze.hang.test_hang import entries, of_ranks
from tests.analyze.output.test_answer import validate
from tests.recorder.recorded import write_record
from tests.recorder.simulated import healthy

from rlprof_ops.recorder.detect.anomaly import HANG, Anomaly


def hung_run(folder: Path, dumped: Path | None, *found: Anomaly) -> Path:
    """A run of 30 steps that left these dumps, and what its recorder found."""
    write_record(folder, "n1", healthy(1, 30, 4))
    if dumped is not None:
        shutil.copytree(dumped, folder / "nodes/n1/torch_fr/100")
    (folder / "recorder").mkdir()
    lines = "".join(json.dumps(each.to_dict()) + "\n" for each in found)
    (folder / "recorder/findings.jsonl").write_text(lines)
    return folder


def test_the_verdict_is_the_first_sentence(tmp_path: Path, dumps: Path) -> None:
    answer = answer_of(hung_run(tmp_path, dumps / "sleeps"), jobs=1, cache=False)
    validate(answer)
    text = "rank 1 is missing: ranks 0, 2-7 wait in all_reduce #4 of default_pg (Float [4, 5])"
    assert (answer["findings"][0]["kind"], answer["findings"][0]["text"]) == (
        "hang",
        f"The job hung: {text}.",
    )
    [hang] = answer["hangs"]
    assert (hang["kind"], hang["text"], hang["groups"]) == ("missing", text, ["default_pg"])
    missing, waiting = hang["ranks"]
    assert (missing["ranks"], missing["is_missing"], missing["last"]) == ([1], True, [3])
    assert missing["open_in"] is None and missing["now"].startswith("ended all_reduce #3 of default_pg")
    assert (waiting["ranks"], waiting["last"], waiting["open_in"]) == ([0, 2, 3, 4, 5, 6, 7], [4], 0)
    assert any("ranks.py" in each for each in waiting["frames"]) and waiting["now"].startswith(
        "in all_reduce #4 of default_pg"
    )


def test_several_groups_are_columns(tmp_path: Path, dumps: Path) -> None:
    answer = answer_of(hung_run(tmp_path, dumps / "opposite_order"), jobs=1, cache=False)
    [hang] = answer["hangs"]
    assert {"tp (1)", "dp (2)"} <= {*hang["groups"]}
    waits = {row["ranks"][0]: hang["groups"][row["open_in"]] for row in hang["ranks"]}
    assert waits == {0: "tp (1)", 1: "dp (2)"}


def test_a_hang_that_the_recorder_alone_has_seen(tmp_path: Path, dumps: Path) -> None:
    waits = "the driver waits for generation of rollout 2 (node n1, pid 7), whose engine stands"
    found = Anomaly(HANG, waits, "hang:1", 10**18, 31, evidence={"still_s": 40.0})
    answer = answer_of(hung_run(tmp_path / "a", None, found), jobs=1, cache=False)
    assert answer["findings"][0]["text"] == f"The job hung in step 31: {waits}."
    assert [(row["kind"], row["step"], row["ranks"]) for row in answer["hangs"]] == [("hang", 31, [])]
    ended = answer_of(hung_run(tmp_path / "b", dumps / "fine"), jobs=1, cache=False)
    assert ended["hangs"] == [] and all(each["kind"] != "hang" for each in ended["findings"])


def test_dumps_that_were_asked_for_make_no_hang(tmp_path: Path) -> None:
    """A rank that works keeps the others waiting in every job; torch's own dumps come after a timeout."""
    behind, ahead = entries("nccl", "completed"), entries("nccl", "completed", "started")
    said = "rank 0 is missing: rank 1 waits in all_reduce #2 of default_pg (Float [4])."
    for suffix, sentence in (
        (".pickle", f"When dumps were asked for: {said}"),
        ("", f"The job hung: {said}"),
    ):
        run = tmp_path / f"run{suffix}"
        run.mkdir()
        hung_run(run, of_ranks(tmp_path / f"dumps{suffix}", behind, ahead, suffix=suffix))
        answer = answer_of(run, jobs=1, cache=False)
        validate(answer)
        assert [each["text"] for each in answer["findings"] if each["kind"] == "hang"] == [sentence]
        assert [row["hung"] for row in answer["hangs"]] == [not suffix]
        end = {"cause": "driver_exit", "exit_code": 1, "detail": "ValueError: no checkpoint"}
        (run / "run.json").write_text(
            json.dumps({"schema": 1, "job": "4711", "started_ns": 1, "driver": {"exit_code": 1}, "end": end})
        )
        status = CliRunner().invoke(cli, ["status", str(run)]).output
        asked, why = f"when dumps were asked for: R{said[1:]}", status.partition("why")[2].strip()
        assert (asked in why, why.startswith(f"R{said[1:]}")) == (bool(suffix), not suffix), status


@pytest.mark.chromium
def test_ranks_stand_by_collective_number_on_the_page(tmp_path: Path, dumps: Path) -> None:
    pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.common.by import By
    from tests.analyze.page.test_page import chromium, nothing_wrong, opened

    run = hung_run(tmp_path / "run", dumps / "sleeps")
    report(run, form="json", jobs=1, cache=False)
    browser: Any = chromium(tmp_path / "chromium")
    try:
        opened(browser, run / "report.html")
        rows = browser.find_elements(By.CSS_SELECTOR, "#hang tbody tr")
        names = [row.find_element(By.CSS_SELECTOR, "td").text for row in rows]
        assert names == ["rank 1: missing", "ranks 0, 2-7"]
        squares = [
            [each.get_attribute("class") for each in row.find_elements(By.CSS_SELECTOR, ".squares i")]
            for row in rows
        ]
        assert squares == [["ended"] * 3 + ["none"], ["ended"] * 3 + ["open"]]
        assert browser.find_element(By.CSS_SELECTOR, "#nav a[href='#hang']").text == "Hang"
        nothing_wrong(browser)
    finally:
        browser.quit()
