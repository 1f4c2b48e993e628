"""A real job with one slow worker, beside what the study that published it found of it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from tests.bench.truth.run import compare
from tests.needs import need


def test_the_slow_worker_of_the_study_costs_what_its_authors_found(tmp_path: Path) -> None:
    need("study")
    first, (cost, *rest) = compare(tmp_path, most_steps=12)
    assert first.startswith("policy_worker rank 0 on n0 is slow in train") and "ranks of stage 0" in first
    assert abs(cost.off) < 0.1
    assert [row.what for row in rest if abs(row.off) > 0.06] == []
    assert {row.what for row in rest} >= {"share of backward-compute in it", "share of forward-compute in it"}
