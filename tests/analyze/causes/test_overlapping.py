"""Loops whose steps or phases overlap: what is said of them is the loop's truth, or nothing. Thirty seeds."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytest.importorskip("msgspec")
from tests.analyze.as_data import data_of, typed
from tests.analyze.causes.loops import Key, Loop
from tests.analyze.causes.overlapping import MS, asynchronous, streamed

from rlprof_ops.analyze.metrics.phases import Segment, stretches
from rlprof_ops.analyze.output.answer import build
from rlprof_ops.analyze.output.terminal import path_lines
from rlprof_ops.analyze.run.merge import Rank, RankStep
from rlprof_ops.analyze.run.process_summary import PhaseTime
from rlprof_ops.analyze.run.run_steps import steps_from_end_to_end

SEEDS = range(30)


def answer_of(loop: Loop) -> dict[str, Any]:
    summaries = loop.summaries()
    return data_of(build(Path("/nonexistent"), [s.report for s in summaries], summaries))


def said(answer: dict[str, Any]) -> list[str]:
    return path_lines(typed(answer).critical_path, [f"{r['worker']} {r['rank']}" for r in answer["ranks"]])


def shorter(loop: Loop, phase: str, share: float = 0.2) -> dict[Key, list[int]]:
    return {k: [round(x * (1 - share)) for x in w] if k[2] == phase else w for k, w in loop.work.items()}


def saves(answer: dict[str, Any], kind: str, phase: str) -> float | None:
    found = [w["saves_ns"] for w in answer["what_if"] if (w["kind"], w["phase"]) == (kind, phase)]
    return found[0] if found else None


@pytest.mark.parametrize("staleness", [1, 2])
def test_of_few_steps_that_overlap_the_period_is_said_and_no_change(staleness: int) -> None:
    for seed in SEEDS:
        loop = asynchronous(seed, staleness)
        answer = answer_of(loop)
        period = loop.period()
        assert answer["what_if"] == [] and not answer["critical_path"]["steps"]
        assert answer["critical_path"]["slack"] == []
        [line] = said(answer)
        assert line.startswith("Steps overlap: the next one begins before a step has ended.")
        assert f"One ends every {round(period / MS)} ms" in line
        assert "10 captured steps in a row" in line
        for step in answer["steps"]:
            assert step["duration_ns"] == pytest.approx(period, rel=0.1)
        assert not [f for f in answer["findings"] if "asynchronous rollout" in f["advice"]]


@pytest.mark.parametrize(
    ("phase", "options"),
    [
        ("train", {}),
        ("train", {"staleness": 2}),
        ("generation", {"generation": 420.0}),
        ("generation", {"generation": 420.0, "staleness": 3}),
    ],
)
def test_of_more_steps_a_replay_of_the_steady_loop_is_right(phase: str, options: dict[str, Any]) -> None:
    errors = []
    for seed in SEEDS:
        loop = asynchronous(seed, steps=10, **options)
        answer = answer_of(loop)
        told = {p: saves(answer, "faster", p) for p in ("generation", "train")}
        truth = loop.period() - loop.period(shorter(loop, phase))
        errors.append(abs((told.pop(phase) or 0) - truth) / truth)
        assert told == {"train": None} or told == {
            "generation": None
        }  # the other one is waited for by nobody
    assert median(errors) < 0.1 and max(errors) < 0.25


def test_ends_on_different_clocks_are_not_compared() -> None:
    """Two hosts captured other steps each, and nobody knows how far apart their clocks are."""
    steps = {"n1": range(1, 6), "n2": range(4, 8)}
    rows = [
        trained(host, step, 10_000 * (host == "n2") + 100 * step) for host in steps for step in steps[host]
    ]
    periods = steps_from_end_to_end(rows, lambda host: host)
    assert {step: end - start for step, (start, end) in periods.items()} == dict.fromkeys(range(1, 8), 100)
    assert periods[5] == (530, 630) and periods[6] == (10_630, 10_730)


def trained(host: str, step: int, start: int) -> RankStep:
    end = start + 130
    phase = PhaseTime(
        step, "train", 130, 1, 0, None, None, stretches([Segment(step, "train", start, end)])["train"]
    )
    return RankStep(Rank("policy", 0, host, 1), step, start, end, True, (phase,), (), None, None, "r", False)


def test_a_slow_rank_and_an_exposed_sync_of_an_asynchronous_loop() -> None:
    slow, sync = [], []
    for seed in SEEDS:
        loop = asynchronous(seed, steps=10)
        quiet = loop.period()
        for (_, _, phase, rank), pieces in loop.work.items():
            if phase == "train" and rank == seed % 4:
                pieces[0] = round(1.25 * pieces[0])
        answer = answer_of(loop)
        [row] = [f for f in answer["findings"] if f["kind"] == "straggler"]
        assert answer["ranks"][row["rank"]]["rank"] == seed % 4
        truth = loop.period() - quiet
        slow.append(abs(row["saves_ns"] - truth) / truth)
        gone = shorter(loop, "weight_sync", 1.0)
        truth = loop.period() - loop.period(gone)
        sync.append(abs((saves(answer, "overlapped", "weight_sync") or 0) - truth) / truth)
    assert median(slow) < 0.1 and max(slow) < 0.25
    assert median(sync) < 0.1 and max(sync) < 0.25


def test_where_rollout_still_fills_its_queue_nothing_is_replayed() -> None:
    """It goes on faster than training then, and no loop that goes on so is steady."""
    for seed in SEEDS:
        assert answer_of(asynchronous(seed, staleness=8, steps=12))["what_if"] == []


def test_a_loop_without_staleness_is_told_as_before() -> None:
    answer = answer_of(asynchronous(0, staleness=0))
    assert [link["phase"] for link in answer["critical_path"]["steps"][0]["links"]] == [
        "generation", "train", "weight_sync",
    ]  # fmt: skip
    assert any("asynchronous rollout" in f["advice"] for f in answer["findings"])


@pytest.mark.parametrize("open_range", [False, True])
@pytest.mark.parametrize("judging_ms", [12, 4])
def test_the_chain_of_a_streamed_reward_goes_through_its_generation(
    open_range: bool, judging_ms: int
) -> None:
    for seed in SEEDS:
        loop = streamed(seed, open_range=open_range, judging_ms=judging_ms)
        answer = answer_of(loop)
        for chain in answer["critical_path"]["steps"]:
            assert [link["phase"] for link in chain["links"]] == [
                "generation",
                "reward",
                "train",
                "weight_sync",
            ]
        assert not any("Could have taken longer" in line and "generation" in line for line in said(answer))
        truth = (loop.length() - loop.length(shorter(loop, "generation"))) / loop.steps
        assert saves(answer, "faster", "generation") == pytest.approx(truth, rel=0.1)


def test_a_streamed_reward_that_cannot_keep_up_is_what_training_waits_for() -> None:
    for seed in SEEDS:
        loop = streamed(seed, judging_ms=40)
        answer = answer_of(loop)
        for phase in ("generation", "reward"):
            truth = (loop.length() - loop.length(shorter(loop, phase))) / loop.steps
            assert (saves(answer, "faster", phase) or 0) == pytest.approx(
                truth, abs=0.03 * loop.length() / loop.steps
            )


def test_what_runs_beside_training_already_is_not_advised_to() -> None:
    found = [
        f
        for f in answer_of(asynchronous(3, generation=420.0))["findings"]
        if f["kind"] == "bubble" and f["phase"] == "generation"
    ]
    assert found and "runs beside training already" in found[0]["advice"]
