"""Pipeline bubbles, against schedules whose bubbles are known in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.output.test_answer import check_sums, validate
from tests.analyze.pipelines import GROUP, SLOW_US, write_pipeline

from rlprof_ops.analyze.metrics.gpu_work.pipeline import is_pipeline

Answer = dict[str, Any]


def read(folder: Path) -> Answer:
    answer = answer_of(folder, jobs=1, cache=False)
    validate(answer)
    check_sums(answer)
    return answer


@pytest.mark.parametrize("stages", [2, 4, 7])
@pytest.mark.parametrize("microbatches", [1, 3, 8, 16])
def test_even_stages_have_the_bubble_that_the_schedule_gives(
    tmp_path: Path, stages: int, microbatches: int
) -> None:
    """(p - 1)/(m + p - 1), whatever the order of forwards and backwards (Narayanan et al., 2021)."""
    whole = write_pipeline(tmp_path, [100.0] * stages, microbatches)
    rows = read(tmp_path)["pipeline"]
    assert [row["stage"] for row in rows] == list(range(stages))
    for row in rows:
        assert (row["phase"], row["stages"], row["ranks"]) == ("train", stages, 1)
        assert row["share"] == pytest.approx((stages - 1) / (microbatches + stages - 1), abs=1e-4)
        assert row["window_ns"] == pytest.approx(1000 * whole, abs=2)
        assert row["compute_ns"] == pytest.approx(300_000 * microbatches, abs=2)
        assert row["waiting_ns"] + row["idle_ns"] + row["compute_ns"] == row["window_ns"]


def test_uneven_stages_are_named_with_what_they_cost(tmp_path: Path) -> None:
    whole = write_pipeline(tmp_path, [100.0, 100.0, 150.0, 100.0], 8, data_parallel=2)
    answer = read(tmp_path)
    rows = answer["pipeline"]
    assert [(row["stage"], row["ranks"]) for row in rows] == [(0, 2), (1, 2), (2, 2), (3, 2)]
    for row, computes in zip(rows, (100, 100, 150, 100), strict=True):
        assert row["share"] == pytest.approx(1 - 3 * 8 * computes / whole, abs=1e-4)
    (finding,) = (found for found in answer["findings"] if found["kind"] == "pipeline")
    lost = whole - 3 * 8 * (100 + 100 + 150 + 100) / 4
    assert finding["cost_ns"] == pytest.approx(1000 * lost, rel=1e-3)
    assert "Stage 2 computes 1.50 times as long as the median one" in finding["text"]
    assert "8 ranks of 4 stages" in finding["text"] and "microbatches" in finding["advice"]


def test_of_two_stages_the_longer_one_is_named(tmp_path: Path) -> None:
    """The median of two is their mean, of which the longer one may be no 15 % more."""
    write_pipeline(tmp_path, [100.0, 120.0], 8)
    (finding,) = (found for found in read(tmp_path)["findings"] if found["kind"] == "pipeline")
    assert "Stage 1 computes 1.20 times as long as the other one" in finding["text"]


@pytest.mark.parametrize("group", [GROUP, "default_pg"])
def test_a_longer_stage_makes_none_of_its_ranks_a_straggler(tmp_path: Path, group: str) -> None:
    """Where nothing says what the transfers are for, whose peers the ranks are cannot be told."""
    write_pipeline(tmp_path, [100.0, 100.0, 150.0, 100.0], 8, group, steps=8)
    answer = read(tmp_path)
    assert answer["stragglers"] == [] and all(row["kind"] != "like_peers" for row in answer["what_if"])


def test_a_slow_rank_is_held_against_its_own_stage(tmp_path: Path) -> None:
    """It computes as long as the ranks of the longer stage."""
    write_pipeline(tmp_path, [100.0, 100.0, 125.0, 100.0], 8, data_parallel=4, steps=8, slow_rank=6)
    answer = read(tmp_path)
    [row] = answer["stragglers"]
    assert (answer["ranks"][row["rank"]]["rank"], row["stage"], row["node"]) == (6, 1, None)
    assert row["excess_ns"] == pytest.approx(1000 * SLOW_US, rel=0.01)
    (text,) = (found["text"] for found in answer["findings"] if found["kind"] == "straggler")
    assert "a step more than the other ranks of stage 1, in 8 of 8 steps" in text


def test_other_groups_make_no_pipeline(tmp_path: Path) -> None:
    write_pipeline(tmp_path, [100.0, 100.0], 4, group="DATA_PARALLEL_GROUP")
    answer = read(tmp_path)
    assert answer["pipeline"] == [] and all(found["kind"] != "pipeline" for found in answer["findings"])


@pytest.mark.parametrize("group", [GROUP, "mesh_pp", "pp", "pp:0", "PP_GROUP", "dp_pp_0"])
def test_the_names_of_pipelines(group: str) -> None:
    assert is_pipeline(group)


@pytest.mark.parametrize(
    "group", ["", "default_pg", "app", "mesh_dp", "ppo_group", "tp", "supply", "undefined"]
)
def test_what_is_no_name_of_one(group: str) -> None:
    assert not is_pipeline(group)
