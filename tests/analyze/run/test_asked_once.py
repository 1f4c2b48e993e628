"""What metrics ask of a trace's launches is found once in a small trace, and equal to a large one's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.analyze.fake_run import make_run

from rlprof_ops.analyze import columns
from rlprof_ops.analyze.metrics import kernels
from rlprof_ops.analyze.run.identity import find_reports
from rlprof_ops.analyze.run.process_summary import Summary
from rlprof_ops.analyze.run.summary import summarise_file


def _summaries(folder: Path) -> list[Summary]:
    found = [one for report in find_reports(folder) for one in summarise_file(folder, report, cache=False)]
    return [
        msgspec.structs.replace(one, seconds=0.0, report=replace(one.report, size_bytes=0))
        for one in found
        if isinstance(one, Summary)
    ]


def test_a_small_trace_is_indexed_once_and_tells_what_it_tells_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_run(tmp_path, ranks=1, generation_ranks=1, kernels=30)
    made = []
    index = columns.LaunchIndex.__init__
    monkeypatch.setattr(columns.LaunchIndex, "__init__", lambda *a: made.append(1) or index(*a))
    small = _summaries(tmp_path)
    assert (len(small), len(made)) == (2, 2)
    monkeypatch.setattr(columns, "FEW_ROWS", 0)
    monkeypatch.setattr(kernels, "FEW_ROWS", 0)
    large = _summaries(tmp_path)
    assert len(made) > 6
    assert repr(small) == repr(large)
