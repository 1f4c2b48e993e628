"""The tables of planted causes, with a few seeds: every cause leads, and runs without one name nobody."""

from __future__ import annotations

import pytest

pytest.importorskip("msgspec")

from tests.bench.truth.causes import accused, off, row_of
from tests.bench.truth.planted import CAUSES, LOOPS, NOISES, faster, without_cause

SEEDS = range(40, 42)  # others than the tables'
# Where a change may be worth no number: nobody waits for the reward, or noise hides it (docs/accuracy.md).
SILENT = {("branch", "reward"), ("fully asynchronous", "train")}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_is_the_first_finding(cause: str) -> None:
    row, right = row_of(cause, SEEDS)
    assert right, row
    assert row[:3] == [cause, 2, 2]


@pytest.mark.parametrize("noise", NOISES)
def test_runs_without_a_cause_name_nobody(noise: str) -> None:
    assert [seed for seed in range(64, 69) if accused(without_cause(seed, noise))] == []


@pytest.mark.parametrize(("kind", "phase"), LOOPS)
def test_a_faster_phase_is_told_for_every_loop(kind: str, phase: str) -> None:
    errors = []
    for seed in SEEDS:
        saves, truth = faster(seed, kind, phase)
        if saves is None:
            assert (kind, phase) in SILENT
            continue
        errors.append(abs(saves - truth) / truth)
    assert off(errors)[1], errors
