"""What a summary looks like in a log: no colours, no word cut in the middle."""

from __future__ import annotations

import re

import pytest
from tests.analyze.as_data import typed
from tests.analyze.shared import real
from tests.analyze.simulated import simulated_answer

from rlprof_ops.analyze import reporting
from rlprof_ops.analyze.output.markdown import markdown
from rlprof_ops.analyze.output.terminal import FEW_ROWS, MAX_ROWS, show, standard_output


def test_a_log_cuts_no_word(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.delenv("COLUMNS", raising=False)
    answer = simulated_answer(2, 3)
    show(typed(answer), standard_output())
    said = capsys.readouterr().out
    assert "…" not in re.sub(r"… [\d,]+ more", "", said) and "\x1b" not in said
    assert all(name in said for name in {row["worker"] for row in answer["phases"]})


def test_operators_that_are_cut_are_counted(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "80")
    show(reporting.answer_of(real("torch/sampled_rank-0.json.gz"), jobs=1, cache=False), standard_output())
    table = capsys.readouterr().out.partition("FLOPs of operators, by shape")[2]
    rows = [line for line in table.splitlines() if " × " in line]
    assert len(rows) == 8 and all(line.rstrip(" │").endswith(" -") for line in rows)
    assert "│ … 158 more" in table


def test_whatever_is_cut_is_counted(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.delenv("COLUMNS", raising=False)
    answer = simulated_answer(2, 3)
    coverage, phase = answer["coverage"], answer["phases"][0]
    answer["phases"] = [phase | {"phase": f"p{i}"} for i in range(MAX_ROWS + 3)]
    coverage["missing"] = [
        {"capture": f"c{i}", "state": "missing", "reason": "?"} for i in range(MAX_ROWS + 4)
    ]
    coverage["unread"] = [{"path": f"u{i}", "reason": "?"} for i in range(MAX_ROWS + 5)]
    other = {"backend": "memory", "worker": "w", "size_bytes": 1, "modified_ns": 1}
    coverage["listed"] = [{"path": f"l{i}"} | other for i in range(MAX_ROWS + 6)]
    kernel = {"worker": "w", "phase": "", "count": 1, "total_ns": 5, "max_ns": 5, "share": 0.1}
    answer["kernels"] = [kernel | {"name": f"k{i}"} for i in range(FEW_ROWS + 7)]
    show(typed(answer), standard_output())
    said = capsys.readouterr().out
    assert f"p{MAX_ROWS - 1} " in said and f"p{MAX_ROWS} " not in said
    assert all(f"… {left} more" in said for left in (3, 4, 5, 6, 7)) and "… 8 more" not in said
    told = markdown(typed(answer))
    assert f"… {MAX_ROWS + 4 + 5} more" in told and "… 3 more" in told


def test_of_many_gpus_the_worst_are_shown_and_the_others_counted(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.delenv("COLUMNS", raising=False)
    answer = simulated_answer(36, 3)
    gpus = len(answer["gpu"])
    assert gpus > MAX_ROWS
    show(typed(answer), standard_output())
    said = capsys.readouterr().out
    assert f"… {gpus - MAX_ROWS} more that idle less, in report.html" in said
    table = said.partition("GPUs over their captures")[2].partition("more that idle less")[0]
    worst = max(answer["gpu"], key=lambda row: row["idle_ns"] / row["window_ns"])
    rank = answer["ranks"][worst["rank"]]
    assert f"{rank['worker']} {rank['rank']} " in table
