"""Windows inside steps that are too short for them, and those that nobody takes: what is said of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.needs import need
from tests.window.test_matrix import PART_ASKED, Job, rows_of

from rlprof_ops.backends.contract import Where
from rlprof_ops.backends.window_support import PROCESS, SUPERVISOR
from rlprof_ops.request import request_from_dict
from rlprof_ops.request.check import check_request


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.whole
@pytest.mark.nsys
def test_parts_that_a_step_is_too_short_for(job: Job) -> None:
    need("nsys")
    both = {"workers": "policy", "options": {"t": "nvtx"}}
    captures = [
        {**both, "steps": "1", "at": "train+1s", "for": "10min"},
        {**both, "steps": "2", "at": "train+1h"},
    ]
    job.train("in_ticks", captures)
    rows = rows_of(job, captures)
    assert rows[1]["state"] == "truncated" and rows[1]["report"]
    assert "step 1 ended after" in rows[1]["reason"]
    assert rows[1]["reason"].endswith("s, before train+1s+600s: the window closed with it")
    assert rows[2]["state"] == "missing"
    assert rows[2]["reason"].startswith("step 2 ended after")
    assert rows[2]["reason"].endswith("s, before train+3600s")


def test_the_words_of_a_refusal_are_the_same_for_all_who_are_asked() -> None:
    for name in ("torch", "memory", "rocprof_sys"):
        capture = {"backend": name, "workers": "policy", "steps": "5", **PART_ASKED}
        request = request_from_dict({"captures": [capture]})
        said = set()
        for driver in ("", PROCESS, SUPERVISOR):
            with pytest.raises(Exception, match="no window inside a step") as caught:
                check_request(request, Where(driver=driver))
            said.add(str(caught.value))
        assert len(said) == 1


def test_a_capture_range_has_no_part() -> None:
    capture = {"workers": "policy", "steps": "5", "options": {"capture-range": "nvtx"}, **PART_ASKED}
    with pytest.raises(Exception, match="leave capture-range out, for a session, or at and for"):
        check_request(request_from_dict({"captures": [capture]}))
