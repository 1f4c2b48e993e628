"""Lengths of answers, against sums over requests one by one."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.whole_run import dealt_requests as made  # noqa: E402
from tests.analyze.whole_run.dealt_requests import Dealt, dealt, steps  # noqa: E402

from rlprof_ops.analyze.output.rollout_lines import _lengths  # noqa: E402
from rlprof_ops.analyze.whole_run import lengths as measured  # noqa: E402
from rlprof_ops.analyze.whole_run.run_data import Lengths  # noqa: E402
from rlprof_ops.analyze.whole_run.section import whole_run  # noqa: E402


def lengths_of(run: Path) -> Lengths:
    found = whole_run(run)
    assert found is not None and found.requests is not None and found.requests.lengths is not None
    return found.requests.lengths


@pytest.mark.parametrize("seed", range(5))
def test_every_figure_is_that_of_the_requests(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    steps(tmp_path, 6)
    rows: list[Dealt] = []
    for rank in range(3):
        mine = []
        for step in range(1, 7):
            for n in range(int(draw.integers(5, 60))):
                end, tokens = float(draw.uniform(0.1, 9.9)), int(draw.lognormal(4.0 + 0.3 * step, 1.0)) + 1
                queued = 0.01 if draw.random() < 0.2 else None  # which ends by its limit, preempted once
                mine.append(Dealt(f"{step}-{rank}-{n}", step, 0.0, end, tokens, queued))
        dealt(tmp_path, rank, mine)
        rows += mine
    found = lengths_of(tmp_path)
    tokens = sorted(row.tokens for row in rows)
    limited = [row for row in rows if row.queued_s is not None]
    assert found.quantiles[0] == statistics.median(tokens) and found.quantiles[-1] == tokens[-1]
    assert found.at_limit == round(len(limited) / len(rows), 4)
    assert (found.preempted, found.preemptions) == (len(limited), len(limited))
    assert sum(found.counts) == len(rows) and sum(found.cut) == len(limited)
    for low, high, count in zip(found.edges, found.edges[1:], found.counts, strict=False):
        last = high == found.edges[-1]
        assert count == sum(low <= each < high + last for each in tokens)
    for place, step in enumerate(found.steps.step):
        mine = [row for row in rows if row.step == step]
        assert found.steps.longest[place] == max(row.tokens for row in mine)
        assert found.steps.median[place] == statistics.median(row.tokens for row in mine)
        assert found.steps.mean[place] == pytest.approx(
            statistics.fmean(row.tokens for row in mine), abs=0.05
        )
        assert found.steps.preempted is not None
        assert found.steps.preempted[place] == sum(row.queued_s is not None for row in mine)
    assert (found.carried, found.mean_carried) == (0.0, None)


def test_short_answers_that_are_done_first_are_a_bias(tmp_path: Path) -> None:
    """Of ten answers begun in each step nine are done in it, and the long one in the next."""
    steps(tmp_path, 4)
    gap = made.STEP_NS / made.SECOND
    rows = [Dealt(f"{s}-{n}", s, 0.0, 1.0 + n, 10) for s in range(1, 5) for n in range(9)]
    rows += [Dealt(f"{s}-long", s, 0.0, gap + 1.0, 110) for s in range(1, 4)]
    dealt(tmp_path, 0, rows)
    found = lengths_of(tmp_path)
    assert found.steps.mean == [10, 20, 20, 20] and found.steps.carried == [0, 0.1, 0.1, 0.1]
    assert (found.carried, found.mean_carried, found.mean_others) == (round(3 / 39, 4), 110, 10)
    assert "7.7 % were begun in an earlier step and are 11.0 times as long as the others" in _lengths(found)


def test_a_long_run_keeps_a_part_of_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "MOST_COLUMNS", 3)
    steps(tmp_path, 9)
    dealt(tmp_path, 0, [Dealt(str(s), s, 0.0, 5.0, s) for s in range(1, 10)])
    found = lengths_of(tmp_path)
    assert found.steps.step == [1, 5, 9] and found.steps.median == [1, 5, 9] and sum(found.counts) == 9
    assert found.preempted is None and found.steps.preempted is None


def test_requests_without_a_token_have_no_lengths(tmp_path: Path) -> None:
    steps(tmp_path, 1)
    dealt(tmp_path, 0, [Dealt("pooled", 1, 0.0, 1.0, 0)])
    found = whole_run(tmp_path)
    assert found is not None and found.requests is not None and found.requests.lengths is None
