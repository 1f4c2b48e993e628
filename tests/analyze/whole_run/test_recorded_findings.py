"""The recorder and the windows together: who is slow by every step of the run, and why by the windows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.causes.host_faults import HostFaults
from tests.analyze.fake_run import make_run
from tests.analyze.output.test_answer import validate
from tests.recorder.meeting_ranks import Ranks, watched
from tests.recorder.recorded import write_record
from tests.recorder.simulated import healthy, slower

from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.news import News
from rlprof_ops.recorder.samples.step_marks import ToldStep


def recorded(folder: Path, worker: str, slow: int | None, seed: int = 1, since: int = 60) -> Path:
    """A record of 90 steps of four ranks, and what the recorder of the head says of them while they come."""
    told = [_named(rows, worker, slow if rows[0].step >= since else None) for rows in healthy(seed, 90, 4)]
    write_record(folder, "n1", told)
    view, found = JobView("1", ["n1"]), []
    for rows in told:
        found += view.take(News("n1", rows[0].begin_ns, None, (), (), (), tuple(rows), (), {}))
    (folder / "recorder").mkdir()
    lines = "".join(json.dumps(finding.to_dict()) + "\n" for finding in found)
    (folder / "recorder" / "findings.jsonl").write_text(lines)
    return folder


def _named(rows: Sequence[ToldStep], worker: str, slow: int | None) -> list[ToldStep]:
    told = list(rows) if slow is None else slower(list(rows), slow, "train", 2.0)
    return [row if row.leads else replace(row, worker=worker) for row in told]


def stragglers(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in answer["findings"] if finding["kind"] == "straggler"]


def texts(found: Iterable[dict[str, Any]]) -> list[str]:
    return [finding["text"] for finding in found]


@pytest.mark.parametrize("seed", range(5))
def test_a_run_without_any_window_answers_from_its_record(tmp_path: Path, seed: int) -> None:
    answer = answer_of(recorded(tmp_path, "policy_worker", 2, seed), jobs=1, cache=False)
    validate(answer)
    [first, *rest] = answer["findings"]
    assert first["kind"] == "straggler"
    assert first["text"].startswith(
        "policy_worker rank 2 is slow in train since step 60, by every step of the run"
    )
    assert 1.5e9 < first["cost_ns"] < 6e9 and first["advice"]
    assert any(f["kind"] == "phase" and "by the record of 90 steps" in f["text"] for f in rest)


def test_a_rank_that_both_name_is_one_finding(tmp_path: Path) -> None:
    make_run(tmp_path, ranks=4, slow_rank=1)
    answer = answer_of(recorded(tmp_path, "policy_worker", 1), jobs=1, cache=False)
    validate(answer)
    [text] = texts(stragglers(answer))
    assert text.startswith(
        "policy_worker rank 1 on n1 is slow in train: 6.00 ms a step more than the other 3 ranks"
    )
    assert "By every step of the run it is slow since step 60: " in text and text.endswith("peers' train.")


def test_a_rank_that_others_wait_for_in_collectives_is_told_as_that(tmp_path: Path) -> None:
    """With windows that name it too, and without any."""
    found = watched(Ranks(3, ranks=4, slow={1: 1.4}, slow_in="train"), minutes=10)
    line = "".join(json.dumps(each.to_dict()) + "\n" for each in found)
    for windows in (True, False):
        folder = tmp_path / str(windows)
        folder.mkdir()
        if windows:
            make_run(folder, ranks=4, slow_rank=1)
        recorded(folder, "policy_worker", None)
        (folder / "recorder" / "findings.jsonl").write_text(line)
        answer = answer_of(folder, jobs=1, cache=False)
        validate(answer)
        [text] = texts(stragglers(answer))
        if windows:
            said = r" By when it called its collectives it is slow since step \d+: 1\.\d\d times its peers"
            assert re.search(said, text), text
        else:
            said = (
                r"policy_worker rank 1 is slow in train since step \d+, by when it called its collectives: 3"
            )
            assert re.match(said, text), text


def test_ranks_of_which_nobody_tells_steps_are_told_in_the_recorders_words(tmp_path: Path) -> None:
    [found] = watched(Ranks(3, slow={1: 1.4}, tells=False), minutes=20)
    recorded(tmp_path, "policy_worker", None)
    (tmp_path / "recorder" / "findings.jsonl").write_text(json.dumps(found.to_dict()))
    answer = answer_of(tmp_path, jobs=1, cache=False)
    said = (
        "The recorder: rank 1 (node n0, pid 101) is slow: it comes last to the collectives of default_pg, and"
    )
    assert any(text.startswith(said) for text in texts(answer["findings"])), texts(answer["findings"])


def test_the_record_names_and_the_windows_say_why(tmp_path: Path) -> None:
    """Pauses every second step: too few steps for the windows to name the rank for good."""
    pauses = {(1, step): 120.0 for step in (2, 4, 6)}
    HostFaults(1, why=("user_annotation", "Python GC"), pauses=pauses).write(tmp_path)
    answer = answer_of(recorded(tmp_path, "policy", 1), jobs=1, cache=False)
    [found] = stragglers(answer)
    assert "policy rank 1 is slow in train since step 60, by every step of the run" in found["text"]
    assert "In the captured steps it takes 6" in found["text"]
    assert "Its GPU stands idle for 60.0 ms of it, while the host collects garbage" in found["text"]
    assert found["saves_ns"] == pytest.approx(60e6, rel=0.05)
    assert not [f for f in answer["findings"] if f["kind"] == "pause"]


def test_a_rank_that_was_not_slow_in_the_windows(tmp_path: Path) -> None:
    HostFaults(1).write(tmp_path)
    [text] = texts(stragglers(answer_of(recorded(tmp_path, "policy", 3), jobs=1, cache=False)))
    assert text.endswith("In the captured steps it is not.")


def test_a_healthy_record_names_nobody(tmp_path: Path) -> None:
    HostFaults(1).write(tmp_path)
    assert not stragglers(answer_of(recorded(tmp_path, "policy", None), jobs=1, cache=False))


def test_what_only_the_recorder_sees_is_said(tmp_path: Path) -> None:
    recorded(tmp_path, "policy_worker", None)
    row = {"kind": "throttle", "text": "GPU 3 of node n1 is throttled: hardware thermal slowdown", "step": 41}
    hostile = {"kind": ["x"], "text": "odd", "step": 42, "ranks": "0", "evidence": [1]}
    lines = json.dumps(row) + "\n" + json.dumps(hostile) + "\n"
    (tmp_path / "recorder" / "findings.jsonl").write_text(lines)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    [said] = [f["text"] for f in answer["findings"] if f["kind"] == "recorded"]
    assert said == "The recorder, at step 41: GPU 3 of node n1 is throttled: hardware thermal slowdown."
