"""What a summary looks like in a log: no colours, no word cut in the middle."""

from __future__ import annotations

import pytest
from tests.analyze.simulated import simulated_answer

from rlprof_ops.analyze.output.terminal import show, standard_output


def test_a_log_cuts_no_word(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.delenv("COLUMNS", raising=False)
    answer = simulated_answer(2, 3)
    show(answer, standard_output())
    said = capsys.readouterr().out
    assert "…" not in said and "\x1b" not in said
    assert all(name in said for name in {row["worker"] for row in answer["phases"]})
