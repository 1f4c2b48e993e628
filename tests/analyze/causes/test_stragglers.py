"""Who is called a straggler: the rule against noise, against few steps, and against many ranks."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

import numpy as np
from msgspec.structs import replace
from tests.bench.stragglers import NOISES, simulate

from rlprof_ops.analyze.causes.significance import quantile
from rlprof_ops.analyze.causes.stages import Stages
from rlprof_ops.analyze.causes.stragglers import stragglers
from rlprof_ops.analyze.metrics.phases import Segment, stretches
from rlprof_ops.analyze.run.merge import Rank, RankStep
from rlprof_ops.analyze.run.process_summary import PhaseTime

MS = 1_000_000


def run(
    own_ms: Sequence[Sequence[float]], ranks_a_node: int = 1, phase_name: str = "train"
) -> list[RankStep]:
    """One row a rank and step; `own_ms[rank][step]`. All ranks leave the phase together, as collectives
    make them.
    """
    rows = []
    for step in range(len(own_ms[0])):
        duration = round(max(mine[step] for mine in own_ms) * MS) + MS
        for number, mine in enumerate(own_ms):
            when = stretches([Segment(step, phase_name, 0, duration)])[phase_name]
            phase = PhaseTime(
                step, phase_name, duration, 1, duration - round(mine[step] * MS), None, None, when
            )
            rank = Rank("policy_worker", number, f"n{number // ranks_a_node}", 100 + number, index=number)
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


@pytest.mark.filterwarnings("error")  # numpy's would reach who reads the report
def test_a_phase_in_which_all_only_wait_names_nobody() -> None:
    assert named(run([[0.0] * 3] * 2)) == []


@pytest.mark.filterwarnings("error")
def test_ranks_that_share_no_step_name_nobody() -> None:
    rows = run([[100.0] * 4] * 3)
    middle = sorted({row.step for row in rows})[2]
    assert named([row for row in rows if (row.rank.rank == 0) == (row.step < middle)]) == []


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


@pytest.mark.parametrize("noise", list(NOISES))
@pytest.mark.parametrize(("ranks", "steps"), [(16, 3), (16, 8), (32, 5)])
def test_noise_alone_names_no_node(noise: str, ranks: int, steps: int) -> None:
    """Of 100 runs each, noise that the ranks of a node share step by step (`colocation`) included."""
    rng = np.random.default_rng([ranks, steps])
    false = 0
    for _ in range(100):
        [times] = 100 * NOISES[noise](rng, (1, ranks, steps), 0.10)
        false += bool(stragglers(run(times.tolist(), ranks_a_node=8), 0))
    assert false <= 4  # three sigma above one in a hundred


def of_nodes(slow: set[int], ranks: int, ranks_a_node: int) -> list[tuple[str | None, int]]:
    rows = noisy(5, ranks, 8, 2.0, dict.fromkeys(slow, 25.0))
    placed = [
        replace(row, rank=dataclasses.replace(row.rank, host=f"n{row.rank.rank // ranks_a_node}"))
        for row in rows
    ]
    return [(row.node, row.rank) for row in stragglers(placed, 0)]


def test_a_node_is_slow_where_most_of_its_ranks_are() -> None:
    assert of_nodes(set(range(8, 16)), 32, 8) == [("n1", 8)]
    assert of_nodes(set(range(9, 16)), 32, 8) == [("n1", 8)]
    assert of_nodes({3}, 4, 2) == [(None, 3)]  # one of two
    assert of_nodes({9}, 32, 8) == [(None, 9)]
    assert sorted(of_nodes(set(range(16, 32)), 64, 8)) == [("n2", 16), ("n3", 24)]
    assert [node for node, _ in of_nodes({8, 9, 10}, 32, 8)] == [None, None, None]


def test_a_node_that_is_fast_makes_no_other_slow() -> None:
    assert of_nodes(set(range(8, 32)), 32, 8) == []


def staged(slow: dict[int, float], stages: int, ranks: int = 16, ranks_a_node: int = 1) -> list[RankStep]:
    """Each stage takes 20 ms more than the one before it; `stages` times `ranks // stages` ranks in order."""
    rng = random.Random(1)
    each = ranks // stages
    longer = [100 + 20.0 * (rank // each) + slow.get(rank, 0.0) for rank in range(ranks)]
    return run([[ms + rng.gauss(0, 1) for _ in range(8)] for ms in longer], ranks_a_node)


def in_stages(rows: list[RankStep], stages: int) -> Stages:
    ranks = sorted({row.rank for row in rows})
    each = len(ranks) // stages
    return Stages({rank: rank.rank // each for rank in ranks}, frozenset({"policy_worker"}))


@pytest.mark.parametrize("stages", [2, 4, 16])
def test_a_longer_stage_makes_none_of_its_ranks_and_no_node_slow(stages: int) -> None:
    for ranks_a_node in (1, 4, 8):
        rows = staged({}, stages, ranks_a_node=ranks_a_node)
        assert stragglers(rows, 0, in_stages(rows, stages)) == ()


def test_a_slow_rank_of_a_stage_and_a_slow_node_of_several_stages_are_named() -> None:
    rows = staged({5: 25.0}, 4)  # of stage 1, and as long as stage 2
    [row] = stragglers(rows, 0, in_stages(rows, 4))
    assert (row.rank, row.stage, row.node) == (5, 1, None)
    assert row.excess_ns == pytest.approx(25 * MS, rel=0.1)
    # two stages of eight on four nodes: ranks 2, 3, 10, 11 are on one of them
    rows = [
        replace(row, rank=dataclasses.replace(row.rank, host=f"n{row.rank.rank % 8 // 2}"))
        for row in staged(dict.fromkeys((2, 3, 10, 11), 25.0), 2)
    ]
    [row] = stragglers(rows, 0, in_stages(rows, 2))
    assert (row.node, row.ranks) == ("n1", [2, 3, 10, 11])
    assert row.excess_ns == pytest.approx(25 * MS, rel=0.1)


def test_where_stages_cannot_be_told_nobody_is_named() -> None:
    rows = staged({5: 25.0}, 4)
    assert stragglers(rows, 0, Stages(piped=frozenset({"policy_worker"}))) == ()
    assert stragglers(rows, 0, Stages(unclear=frozenset({("policy_worker", "train")}))) == ()
    even = staged({5: 25.0}, 1)
    assert stragglers(even, 0, Stages(unclear=frozenset({("policy_worker", "train")}))) == ()
    assert stragglers(even, 0, Stages(unclear=frozenset({("policy_worker", "logprob")}))) != ()


def test_a_rank_no_further_apart_than_ranks_are_for_good_is_not_named() -> None:
    """Sixteen ranks that differ by up to 30 % in every step; one that differs by twice as much is named."""
    usual = [100.0 + 2 * rank for rank in range(16)]
    rng = random.Random(1)
    assert named(run([[ms + rng.gauss(0, 1) for _ in range(8)] for ms in usual])) == []
    assert named(run([[ms + rng.gauss(0, 1) for _ in range(8)] for ms in [*usual[:15], 200.0]])) == [15]


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_ranks_whose_steps_are_alike_are_named_in_no_more_runs(rho: float) -> None:
    """Of 200 runs of four ranks and six steps; counted as independent, 25 name somebody at 0.8."""
    false = 0
    for seed in range(200):
        rng = np.random.default_rng([seed, round(10 * rho)])
        steps = rng.standard_normal((6, 16))
        for step in range(1, 6):
            steps[step] = rho * steps[step - 1] + (1 - rho**2) ** 0.5 * steps[step]
        times = 100 * (1 + 0.04 * steps.T.reshape(4, 4, 6))
        rows = [row for number, own in enumerate(times) for row in run(own.tolist(), 1, f"phase{number}")]
        false += bool(stragglers(rows, 0))
    assert false <= 6
