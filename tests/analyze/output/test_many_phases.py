"""Steps with more phases, or more stretches of phases, than a picture holds: no crash, and no sum is taken of
the picture.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of, typed
from tests.analyze.output.test_answer import check_sums
from tests.analyze.shared import mark, write_trace

from rlprof_ops.analyze.metrics.phases import MAX_SEGMENTS
from rlprof_ops.analyze.page.html_page import render

STEP_US = 100_000.0
Phases = list[tuple[str, float, float]]  # name, start and length in µs of the step


def answer_for(folder: Path, workers: dict[str, Phases]) -> dict[str, Any]:
    for worker, phases in workers.items():
        events = [mark("step 3", 0, STEP_US), *(mark(name, a, length) for name, a, length in phases)]
        name = f"{worker}_rank0_step3-3_n0_{len(worker)}.pt.trace.json.gz"
        write_trace(folder / "profiles" / "torch" / worker / "rank0" / name, events, base_ns=10**18)
    answer = answer_of(folder, jobs=1, cache=False)
    check_sums(answer)
    return answer


def pairs(count: int) -> Phases:
    """`count` pairs of forward and backward that fill the step without a gap."""
    each = STEP_US / count / 2
    return [(("forward", "backward")[i % 2], i * each, each) for i in range(2 * count)]


def test_401_names_are_401_phases(tmp_path: Path) -> None:
    each = STEP_US / 401
    answer = answer_for(tmp_path, {"policy_worker": [(f"batch {i}", i * each, each) for i in range(401)]})
    assert sorted(answer["phase_names"]) == sorted(f"batch {i}" for i in range(401))
    assert len(answer["anatomy"][0]["phases"]) == 401 and answer["anatomy"][0]["idle_ns"] < 401
    assert len(answer["segments"]) <= MAX_SEGMENTS
    assert "batch 400" in render(typed(answer))


def test_a_short_phase_after_hundreds_of_others_counts(tmp_path: Path) -> None:
    each = 90_000 / 400
    work = [(("forward", "backward")[i % 2], i * each, each) for i in range(400)]
    answer = answer_for(tmp_path, {"policy_worker": [*work, ("optimizer", 99_000, 10.0)]})
    assert "optimizer" in answer["phase_names"]


def test_a_thousand_pairs_that_fill_a_step_leave_nobody_idle(tmp_path: Path) -> None:
    generation: Phases = [("generation", 0, STEP_US)]
    answer = answer_for(tmp_path, {"policy_worker": pairs(1000), "vllm_worker": generation})
    policy = next(r for r in answer["anatomy"] if answer["ranks"][r["rank"]]["worker"] == "policy_worker")
    assert policy["idle_ns"] == 0 and policy["unexplained_ns"] == 0 and policy["waiting_ns"] == {}
    assert not [f for f in answer["findings"] if f["kind"] in ("bubble", "unexplained")]
    assert answer["bubbles"] == []
    drawn = [s for s in answer["segments"] if answer["ranks"][s[0]]["worker"] == "policy_worker"]
    assert len(drawn) <= MAX_SEGMENTS
    assert sum(s[4] for s in drawn) >= 0.99 * STEP_US * 1000  # the picture is no emptier than the step


@pytest.mark.parametrize("seed", range(5))
def test_waiting_and_bubbles_are_what_a_sweep_over_every_microsecond_says(tmp_path: Path, seed: int) -> None:
    """The oracle paints whole microseconds and shares no code with the intervals."""
    rng = random.Random(seed)
    workers = {name: _scattered(rng) for name in ("policy_worker", "vllm_worker")}
    answer = answer_for(tmp_path, workers)
    painted = {name: _paint(phases) for name, phases in workers.items()}
    for row in answer["anatomy"]:
        name = answer["ranks"][row["rank"]]["worker"]
        other = next(w for w in workers if w != name)
        idle = [i for i, phase in enumerate(painted[name]) if phase is None]
        through: dict[str, int] = {}
        for i in idle:
            if painted[other][i] is not None:
                through[str(painted[other][i])] = through.get(str(painted[other][i]), 0) + 1000
        assert row["waiting_ns"].get(other, 0) == sum(through.values())
        assert row["unexplained_ns"] == 1000 * len(idle) - sum(through.values())
        found = {b["phase"]: b["mean_ns"] for b in answer["bubbles"] if b["worker"] == name}
        assert found == through


def _scattered(rng: random.Random) -> Phases:
    """Some 1,500 short phases, some apart and some touching."""
    found, now = [], rng.randrange(50)
    while now < STEP_US - 100:
        length = rng.randrange(1, 80)
        found.append((rng.choice(("generation", "train", "reward")), float(now), float(length)))
        now += length + rng.choice((0, 0, 1, rng.randrange(100)))
    return found


def _paint(phases: Phases) -> list[str | None]:
    painted: list[str | None] = [None] * round(STEP_US)
    for name, start, length in phases:
        painted[round(start) : round(start + length)] = [name] * round(length)
    return painted
