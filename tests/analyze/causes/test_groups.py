"""A slow group of ranks and a late rank look alike in the length of a collective; they are told apart."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.causes.dp_groups import write_groups
from tests.analyze.output.test_answer import check_sums, validate

SEEDS = range(4)
SLOW = {2: 1.7}


def answer(folder: Path, seed: int, **planted: Any) -> dict[str, Any]:
    found = answer_of(write_groups(folder, seed, **planted), jobs=1, cache=False)
    validate(found)
    check_sums(found)
    return found


def reduced(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in found["collectives"] if row["op"] == "reducescatter"]


def step_ns(found: dict[str, Any]) -> float:
    return fmean(row["duration_ns"] for row in found["steps"])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_with_slow_links_is_named_with_its_members_and_what_it_costs(
    tmp_path: Path, seed: int
) -> None:
    found = answer(tmp_path / "slow", seed, slow=SLOW)
    healthy = answer(tmp_path / "healthy", seed)
    first = found["findings"][0]
    assert first["kind"] == "slow_group" and "ranks 2, 6, 10 and 14 (nodes n0 and n1)" in first["text"]
    assert first["saves_ns"] == pytest.approx(step_ns(found) - step_ns(healthy), rel=0.1)
    slow, others = reduced(found)
    assert slow["members"] == [2, 6, 10, 14] and others["members"] == []
    assert (slow["bus_gb_per_s"], others["bus_gb_per_s"]) == pytest.approx((1.7, 33), rel=0.05)
    assert (slow["count"], others["count"]) == (4 * 8, 12 * 8)
    assert not {"straggler", "skew"} & {f["kind"] for f in found["findings"]}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_late_rank_is_late_and_its_group_is_not_slow(tmp_path: Path, seed: int) -> None:
    found = answer(tmp_path, seed, late_us={6: 30_000.0})
    assert found["findings"][0]["kind"] == "straggler" and "rank 6" in found["findings"][0]["text"]
    [row] = reduced(found)
    assert row["members"] == [] and row["bus_gb_per_s"] == pytest.approx(33, rel=0.05)
    assert row["waiting_ns"] > row["transfer_ns"]
    [skew] = [f["text"] for f in found["findings"] if f["kind"] == "skew"]
    assert "rank 6 comes last to 100 %" in skew and "of transfer" in skew


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_groups_are_one_row_and_nobody_is_accused(tmp_path: Path, seed: int) -> None:
    found = answer(tmp_path, seed)
    assert len(reduced(found)) == 1
    assert not {"straggler", "skew", "slow_group"} & {f["kind"] for f in found["findings"]}


def test_a_slow_group_with_a_late_rank_is_both(tmp_path: Path) -> None:
    found = answer(tmp_path, 1, slow={1: 8.0}, late_us={6: 40_000.0})
    kinds = [f["kind"] for f in found["findings"]]
    assert kinds[0] == "straggler" and "slow_group" in kinds
    slow = next(f for f in found["findings"] if f["kind"] == "slow_group")
    assert "ranks 1, 5, 9 and 13" in slow["text"]
    assert [row["members"] for row in reduced(found) if row["members"]] == [[1, 5, 9, 13]]


def test_of_two_groups_the_one_that_is_slower_than_the_other_is_named(tmp_path: Path) -> None:
    found = answer(tmp_path, 1, groups=2, members=2, slow={0: 2.0})
    assert "its sibling's" in found["findings"][0]["text"]
    assert [row["members"] for row in reduced(found) if row["members"]] == [[0, 2]]
