"""The longest kernels of a step, one by one: those that a sort of everything finds."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of  # noqa: E402
from tests.analyze.fake_run import make_run  # noqa: E402
from tests.analyze.shared import real  # noqa: E402
from tests.analyze.simulated import simulated_answer  # noqa: E402

from rlprof_ops.analyze.metrics.gpu_work import longest  # noqa: E402
from rlprof_ops.analyze.output.tables import work_tables  # noqa: E402
from rlprof_ops.analyze.readers import read_report  # noqa: E402


def test_they_are_the_longest_of_a_real_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longest, "MOST", 25)
    trace = read_report(real("torch/h100_qwen1.5_0.5b_part.json.gz"), cache=False)
    window = trace.origin.window_start, trace.origin.window_end
    found = longest.longest_kernels(trace, [window])
    durations = sorted(trace.gpu.duration.tolist(), reverse=True)
    assert sorted(found.duration.tolist(), reverse=True) == durations[:25]
    names = [trace.names[code] for code in trace.gpu.name.tolist()]
    whole = set(zip(names, trace.gpu.start.tolist(), trace.gpu.duration.tolist(), strict=True))
    mine = [found.names[code] for code in found.name.tolist()]
    assert set(zip(mine, found.start.tolist(), found.duration.tolist(), strict=True)) <= whole
    assert found.start.tolist() == sorted(found.start.tolist())
    assert len(longest.longest_kernels(trace, [(0, 1)])) == len(longest.longest_kernels(trace, [])) == 0


def test_the_report_has_them_within_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, ranks=4)
    whole = answer_of(run, jobs=1, cache=False)
    spans = whole["kernel_spans"]
    assert len(spans["spans"]) == sum(row["kernels"] for row in whole["gpu"])
    (nccl,) = [i for i, name in enumerate(spans["names"]) if name.startswith("nccl")]
    last = max(row[3] for row in spans["spans"] if row[1] == nccl)
    assert last == max(row["max_ns"] for row in whole["kernels"] if row["name"].startswith("nccl"))
    monkeypatch.setattr(work_tables, "MAX_SPANS", 100)
    fewer = answer_of(run, jobs=1, cache=False)["kernel_spans"]
    assert fewer["a_report"] == 20 and len(fewer["spans"]) == 100


def test_a_report_without_gpu_work_has_none() -> None:
    assert simulated_answer(2, 2)["kernel_spans"]["spans"] == []
