"""Who is called a straggler: the rule against noise, against few steps, and against many ranks."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.bench.stragglers.run import simulate

from rlprof_ops.analyze.causes.significance import quantile
from rlprof_ops.analyze.causes.stragglers import stragglers
from rlprof_ops.analyze.metrics.phases import Segment, stretches
from rlprof_ops.analyze.run.merge import Rank, RankStep
from rlprof_ops.analyze.run.process_summary import PhaseTime

MS = 1_000_000


def run(own_ms: list[list[float]]) -> list[RankStep]:
    """One row a rank and step; `own_ms[rank][step]`. All ranks leave the phase together, as collectives
    make them.
    """
    rows = []
    for step in range(len(own_ms[0])):
        duration = round(max(mine[step] for mine in own_ms) * MS) + MS
        for number, mine in enumerate(own_ms):
            when = stretches([Segment(step, "train", 0, duration)])["train"]
            phase = PhaseTime(step, "train", duration, 1, duration - round(mine[step] * MS), None, None, when)
            rank = Rank("policy_worker", number, f"n{number}", 100 + number, index=number)
            rows.append(RankStep(rank, step, 0, 2 * duration, True, (phase,), (), None, None, "r", True))
    return rows


def noisy(
    seed: int, ranks: int, steps: int, spread: float, slow: dict[int, float] | None = None
) -> list[RankStep]:
    rng = random.Random(seed)
    return run(
        [
            [100 + (slow or {}).get(rank, 0.0) + rng.gauss(0, spread) for _ in range(steps)]
            for rank in range(ranks)
        ]
    )


def named(rows: list[RankStep], residual_ns: int | None = 0) -> list[int]:
    return [row.rank for row in stragglers(rows, residual_ns)]


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.99, 3, 4.5407),
        (0.95, 10, 1.8125),
        (0.9999, 2, 70.7001),
        (0.999, 1000, 3.0984),
    ],
)
def test_the_quantiles_are_those_of_the_tables(probability: float, freedom: int, expected: float) -> None:
    assert quantile(probability, freedom) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("ranks", "steps"), [(2, 2), (2, 3), (2, 8), (8, 3), (64, 3)])
def test_noise_alone_names_somebody_in_at_most_one_run_of_twenty(ranks: int, steps: int) -> None:
    runs = 200 if ranks < 64 else 40
    false = sum(bool(named(noisy(seed, ranks, steps, spread=30))) for seed in range(runs))
    assert false <= runs / 20 + 3 * (runs / 20) ** 0.5 - 1


@pytest.mark.parametrize(
    ("ranks", "steps", "spread"), [(2, 3, 1), (2, 8, 3), (8, 3, 4), (64, 3, 4), (512, 2, 2)]
)
def test_one_slow_rank_and_nobody_else_is_named(ranks: int, steps: int, spread: float) -> None:
    found = [named(noisy(seed, ranks, steps, spread, {1: 25.0})) for seed in range(5)]
    assert found == [[1]] * 5


@pytest.mark.parametrize("noise", ["normal", "colocation", "bursts", "tails"])
@pytest.mark.parametrize(("ranks", "steps"), [(2, 3), (8, 3), (16, 3), (16, 5), (64, 5)])
@pytest.mark.parametrize("spread", [0.02, 0.10])
def test_a_false_name_is_rarer_than_one_run_in_a_hundred(
    noise: str, ranks: int, steps: int, spread: float
) -> None:
    """Two hundred runs of four phases; five is above three sigma of one in a hundred."""
    false, _ = simulate(noise, ranks, steps, spread, 0.0, 200)
    assert false * 200 <= 5


def test_a_rank_a_quarter_slower_is_found_in_a_few_steps() -> None:
    assert simulate("normal", 16, 3, 0.05, 0.25, 100)[1] >= 0.9
    assert simulate("bursts", 16, 20, 0.05, 0.25, 100)[1] >= 0.9
    assert simulate("normal", 256, 3, 0.02, 0.10, 50)[1] >= 0.7


def test_a_single_step_names_nobody() -> None:
    assert named(run([[100.0]] * 7 + [[200.0]])) == []


def test_ranks_that_miss_steps_are_judged_by_those_they_have() -> None:
    rows = noisy(1, 16, 8, 2.0, {3: 25.0})
    assert named([row for row in rows if not (row.rank.rank in (3, 5) and row.step > 4)]) == [3]


def test_one_bad_step_is_no_straggler() -> None:
    assert named(run([[100.0] * 8, [100.0] * 7 + [400.0]])) == []


def test_what_does_not_matter_is_not_named() -> None:
    assert named(run([[100.0] * 6, [105.0, 105.1, 104.9, 105.0, 105.1, 104.9]])) == []


def test_a_clock_that_is_not_known_well_enough_keeps_silent() -> None:
    rows = noisy(1, 2, 6, 1.0, {1: 25.0})
    assert named(rows, residual_ns=20 * MS) == [1]
    assert named(rows, residual_ns=30 * MS) == []
