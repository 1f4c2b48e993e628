"""A blind reading of simulated runs, each with one planted cause: the first finding names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")
from tests.analyze.as_data import data_of
from tests.analyze.causes.loops import Loop, usual_loop

from rlprof_ops.analyze.output.answer import build

SEEDS = range(10)


def first_finding(loop: Loop) -> tuple[dict[str, Any], dict[str, Any]]:
    summaries = loop.summaries()
    answer = data_of(build(Path("/nonexistent"), [s.report for s in summaries], summaries))
    return answer["findings"][0], answer


def planted(seed: int, phase: str, more_ns: int, rank: int | None) -> Loop:
    """`rank` None: another one in each step."""
    loop = usual_loop(seed, rollout=4, policy=4, steps=6, noise=0.04)
    for (step, _, its_phase, its_rank), pieces in loop.work.items():
        if its_phase == phase and its_rank == ((step + seed) % 4 if rank is None else rank):
            pieces[-1] += more_ns
    return loop


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_rank_is_named_first(seed: int) -> None:
    found, answer = first_finding(planted(seed, "train", 150_000, seed % 4))
    assert (found["kind"], found["phase"]) == ("straggler", "train")
    assert answer["ranks"][found["rank"]]["rank"] == seed % 4
    assert found["saves_ns"] == pytest.approx(150_000, rel=0.2)
    assert found["link"] == f"#step={found['step']}&rank={seed % 4}&worker=policy"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_tail_is_named_first(seed: int) -> None:
    found, _ = first_finding(planted(seed, "generation", 250_000, None))
    assert (found["kind"], found["phase"], found["worker"]) == ("tail", "generation", "rollout")
    assert found["saves_ns"] == pytest.approx(250_000, rel=0.2)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_exposed_weight_sync_is_named_first(seed: int) -> None:
    loop = usual_loop(seed, rollout=4, policy=4, steps=6, noise=0.04)
    for (_, worker, phase, _), pieces in loop.work.items():
        if phase == "weight_sync" and worker == "rollout":
            pieces[0] += 200_000
    found, _ = first_finding(loop)
    assert (found["kind"], found["phase"]) == ("weight_sync", "weight_sync")
    assert found["saves_ns"] == pytest.approx(280_000, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_of_two_causes_the_dearer_leads_and_without_one_nobody_is_accused(seed: int) -> None:
    loop = planted(seed, "train", 50_000, 2)
    for (step, _, phase, rank), pieces in loop.work.items():
        if phase == "generation" and rank == step % 4:
            pieces[0] += 250_000
    found, answer = first_finding(loop)
    assert found["kind"] == "tail"
    saves = [f["saves_ns"] for f in answer["findings"] if f["saves_ns"] is not None]
    assert saves == sorted(saves, reverse=True)
    _, quiet = first_finding(usual_loop(seed, rollout=4, policy=4, steps=6, noise=0.04))
    assert not {"straggler", "tail"} & {f["kind"] for f in quiet["findings"]}
