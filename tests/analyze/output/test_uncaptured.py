"""A worker that was not recorded is not idle, and all ranks' shares are of one step, the run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.output.test_answer import check_sums, rows_of, validate
from tests.analyze.shared import mark, write_trace

MS = 1_000_000
# worker -> step -> (mark's start and end, {phase: (start, end)}), in ms of the run; no mark: None
Marks = dict[str, dict[int, tuple[tuple[float, float] | None, dict[str, tuple[float, float]]]]]


def answer_for(folder: Path, marks: Marks, host: str = "n0") -> dict[str, Any]:
    for number, (worker, steps) in enumerate(marks.items()):
        events = []
        for step, (span, phases) in steps.items():
            if span:
                events.append(mark(f"step {step}", span[0] * 1000, (span[1] - span[0]) * 1000))
            events += [mark(name, a * 1000, (b - a) * 1000) for name, (a, b) in phases.items()]
        first, last = min(steps), max(steps)
        name = f"{worker}_rank0_step{first}-{last}_{host}_{100 + number}.pt.trace.json.gz"
        place = folder / "profiles" / "torch" / worker / "rank0"
        write_trace(place / name, events, base_ns=10**18, host_name=host)
    answer = answer_of(folder, jobs=1, cache=False)
    check_sums(answer)
    validate(answer)
    return answer


def texts(answer: dict[str, Any], kind: str) -> list[str]:
    return [f["text"] for f in answer["findings"] if f["kind"] == kind]


def loop(worker: str, steps: list[int]) -> Any:
    """One worker's part of steps of 100 ms: generation for 40 of them, then training for 50."""
    phase, a, b = ("generation", 0, 40) if worker == "vllm_worker" else ("train", 45, 95)
    return {s: ((100.0 * s, 100.0 * s + 100), {phase: (100.0 * s + a, 100.0 * s + b)}) for s in steps}


def test_means_are_over_the_steps_in_which_both_were_captured(tmp_path: Path) -> None:
    answer = answer_for(
        tmp_path,
        {
            "policy_worker": loop("policy_worker", [1, 2, 3, 4]),
            "vllm_worker": loop("vllm_worker", [4]),
        },
    )
    idle = next(t for t in texts(answer, "bubble") if t.startswith("policy_worker"))
    assert "stands idle 40.0 ms a step (40 %) while vllm_worker is in generation" in idle
    assert "in which both were captured" in idle
    assert not texts(answer, "unexplained")
    for row in rows_of(answer, "policy_worker"):
        both = row["step"] == 4
        assert row["unexplained_ns"] == (10 * MS if both else 0)
        assert row["uncaptured_ns"] == (0 if both else 50 * MS)
        assert row["waiting_ns"] == ({"vllm_worker": 40 * MS} if both else {})


def test_who_takes_turns_by_design_is_told_from_who_waits(tmp_path: Path) -> None:
    """A synchronous loop of two roles and a third that waits for both; then one that trains while half of the
    next generation runs.
    """
    for overlap, by_design in ((0.0, True), (20.0, False)):
        marks: Marks = {"vllm_worker": {}, "policy_worker": {}, "reward_worker": {}}
        for s in (1, 2, 3, 4):
            t = 100.0 * s
            marks["vllm_worker"][s] = ((t, t + 100), {"generation": (t, t + 50)})
            marks["policy_worker"][s] = ((t, t + 100), {"train": (t + 55 - overlap, t + 95)})
            marks["reward_worker"][s] = ((t, t + 100), {"reward": (t + 50, t + 55)})
        answer = answer_for(tmp_path / str(overlap), marks)

        idle = texts(answer, "bubble")
        assert len(idle) == 3 and all(("take turns by design" in text) is by_design for text in idle), idle
        kinds = [finding["kind"] for finding in answer["findings"]]
        if by_design:
            assert set(kinds[-len(idle) - 1 :]) == {"bubble", "phase"}, "what is so by design comes last"


def test_the_policy_alone_is_not_called_idle(tmp_path: Path) -> None:
    answer = answer_for(tmp_path, {"policy_worker": loop("policy_worker", [1, 2])})
    assert not texts(answer, "bubble") and not texts(answer, "unexplained")
    assert [r["uncaptured_ns"] for r in rows_of(answer, "policy_worker")] == [50 * MS, 50 * MS]
    said = texts(answer, "uncaptured")[0]
    assert "while other workers were not captured" in said and "Capture all workers" in said
    assert answer["findings"][0]["kind"] != "uncaptured"  # nothing is known of it, so it leads nothing


def test_who_was_captured_and_marks_no_phase_is_not_called_uncaptured(tmp_path: Path) -> None:
    """OpenRLHF's actors mark their phases, its reference model and servers of another kind none."""
    silent = {worker: {s: ((100.0 * s, 100.0 * s + 100), {}) for s in (1, 2)} for worker in ("ref", "server")}
    answer = answer_for(tmp_path, {"actor": loop("actor", [1, 2]), **silent})
    [said] = texts(answer, "uncaptured")
    assert "actor is in no phase and reports of ref and server have none" in said
    assert "not captured" not in said and "Mark phases there with prof.range()" in said


def test_one_worker_that_does_the_whole_loop_has_nobody_else_to_wait_for(tmp_path: Path) -> None:
    phases = {"generation": (100.0, 140.0), "train": (150.0, 190.0)}
    answer = answer_for(tmp_path, {"trainer": {1: ((100.0, 200.0), phases)}})
    row = rows_of(answer, "trainer")[0]
    assert (row["unexplained_ns"], row["uncaptured_ns"]) == (20 * MS, 0)


def test_a_worker_that_marks_no_phases_is_not_said_to_wait(tmp_path: Path) -> None:
    marks = {w: loop(w, [1]) for w in ("policy_worker", "vllm_worker")}
    answer = answer_for(tmp_path, {**marks, "reward_worker": {1: ((100.0, 200.0), {})}})
    assert rows_of(answer, "reward_worker")[0]["waiting_ns"] == {}
    assert not [t for t in texts(answer, "bubble") if t.startswith("reward_worker")]


def bare_ray(steps: list[int]) -> Marks:
    """Actors that open a step of their own in each call: 200 ms of generation, 55 of reward, 225 of train."""
    marks: Marks = {"vllm_worker": {}, "reward_worker": {}, "policy_worker": {}}
    for s in steps:
        t = 500.0 * s
        marks["vllm_worker"][s] = ((t, t + 202), {"generation": (t + 1, t + 201)})
        marks["reward_worker"][s] = ((t + 210, t + 267), {"reward": (t + 211, t + 266)})
        marks["policy_worker"][s] = ((t + 270, t + 497), {"train": (t + 271, t + 496)})
    return marks


def test_shares_of_actors_with_their_own_steps_are_of_the_runs_step(tmp_path: Path) -> None:
    answer = answer_for(tmp_path, bare_ray([3, 4, 5]))
    shares = {p["phase"]: p["share_of_step"] for p in answer["phases"]}
    assert shares["train"] == pytest.approx(225 / 496, abs=0.01)
    assert shares["generation"] == pytest.approx(200 / 496, abs=0.01)
    assert sum(shares.values()) < 1
    for step in answer["steps"]:
        assert step["duration_ns"] == pytest.approx(497 * MS, rel=0.01)
    for row in rows_of(answer, "policy_worker"):
        assert row["duration_ns"] == pytest.approx(497 * MS, rel=0.01)
        assert row["waiting_ns"] == {"vllm_worker": 200 * MS, "reward_worker": 55 * MS}
    assert any("policy_worker stands idle 200 ms a step (40 %)" in t for t in texts(answer, "bubble"))


def test_steps_that_overlap_are_not_waiting(tmp_path: Path) -> None:
    """Generation runs one step ahead of training: nobody waits, though the steps' spans overlap."""
    marks: Marks = {"vllm_worker": {}, "policy_worker": {}}
    for s in (1, 2, 3, 4):
        t = 100.0 * s
        marks["vllm_worker"][s] = ((t, t + 100), {"generation": (t, t + 100)})
        marks["policy_worker"][s] = ((t + 100, t + 200), {"train": (t + 100, t + 200)})
    answer = answer_for(tmp_path, marks)
    middle = [r for r in answer["anatomy"] if r["step"] in (2, 3)]
    assert [r["idle_ns"] for r in middle] == [0] * 4
    by_rank: dict[int, list[tuple[int, int]]] = {}
    for row in answer["anatomy"]:
        by_rank.setdefault(row["rank"], []).append((row["start_ns"], row["start_ns"] + row["duration_ns"]))
    for spans in by_rank.values():
        assert all(a[1] <= b[0] for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False))


def test_equal_numbers_far_apart_are_not_one_step(tmp_path: Path) -> None:
    marks = {w: loop(w, [1]) for w in ("policy_worker",)}
    marks["other_worker"] = {1: ((9000.0, 9100.0), {"generation": (9000.0, 9050.0)})}
    answer = answer_for(tmp_path, marks)
    assert all(row["duration_ns"] <= 100 * MS for row in answer["anatomy"])
