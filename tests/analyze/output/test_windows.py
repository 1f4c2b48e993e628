"""Windows whose steps no range marks: told apart by repeated phases, else called a window of N steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from rich.console import Console
from tests.analyze.as_data import answer_of, typed
from tests.analyze.output.test_answer import check_sums, validate
from tests.analyze.shared import kernel, launch, mark, write_trace

from rlprof_ops.analyze.output.run_diff import compare
from rlprof_ops.analyze.output.terminal import show
from rlprof_ops.analyze.page.html_page import render

MS = 1_000_000
FILE = "policy_worker_rank0_step{0}_n0_100.pt.trace.json.gz"


def answer_for(folder: Path, events: list[Any], steps: str = "3-4") -> dict[str, Any]:
    name = FILE.format(steps)
    place = folder / "profiles" / "torch" / "policy_worker" / "rank0"
    write_trace(place / name, events, base_ns=10**18, host_name="n0")
    answer = answer_of(folder, jobs=1, cache=False)
    check_sums(answer)
    validate(answer)
    return answer


def step(begin_ms: float, marked: int | None = None, order: str = "gt", factor: float = 1.0) -> list[Any]:
    """100 ms: generation for 40 and train for 38, with 30 ms of kernels in train."""
    begin = begin_ms * 1000
    events = [mark(f"step {marked}", begin, 100_000)] if marked is not None else []
    for phase in order:
        if phase == "g":
            events.append(mark("generation", begin, 40_000))
        else:
            events.append(mark("train", begin + 50_000, 38_000 * factor))
            events.append(launch(begin + 50_010, int(begin)))
            events.append(kernel("gemm", begin + 50_100, 30_000 * factor, correlation=int(begin)))
    return events


def said(answer: dict[str, Any]) -> str:
    console = Console(width=200, record=True, file=None)
    with console.capture() as captured:
        show(typed(answer), console)
    return captured.get()


def test_a_window_that_nothing_divides_is_not_called_one_step(tmp_path: Path) -> None:
    """Phases that do not repeat alike: generation and train, then train alone."""
    answer = answer_for(tmp_path, [*step(0), *step(100, order="t")])
    window = answer["steps"][0]
    assert (window["step"], window["count"], window["marked"]) == (3, 2, False) and len(answer["steps"]) == 1
    train = next(p for p in answer["phases"] if p["phase"] == "train")
    assert train["mean_ns"] == 38 * MS
    text = said(answer)
    assert "steps 3:5" in text and "a window of 2 steps" in text
    assert "38.0 ms" in text and "76.0 ms" not in text
    assert "a window of 2 steps" in render(typed(answer))
    assert answer["coverage"]["reports"][0]["steps"] == [3, 4]


def test_phases_that_repeat_once_a_step_tell_the_steps(tmp_path: Path) -> None:
    answer = answer_for(tmp_path, [*step(0), *step(100)])
    assert [(s["step"], s["count"], s["marked"]) for s in answer["steps"]] == [(3, 1, False), (4, 1, False)]
    assert [p["mean_ns"] for p in answer["phases"]] == [40 * MS, 38 * MS]
    assert "told by their phases, which repeat" in said(answer)


@pytest.mark.parametrize("order", ["gtt", "g", "t"])
def test_what_could_be_micro_batches_is_left_alone(tmp_path: Path, order: str) -> None:
    events = [e for i, o in enumerate(order) for e in step(100.0 * i, order=o)]
    answer = answer_for(tmp_path, events)
    assert [s["count"] for s in answer["steps"]] == [2]


def test_a_window_of_unknown_length_says_so(tmp_path: Path) -> None:
    place = tmp_path / "trace_of_something"
    write_trace(place / "trace.pt.trace.json.gz", [*step(0), *step(100)], base_ns=10**18)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    assert [s["count"] for s in answer["steps"]] == [None]
    assert "nothing tells how many steps" in said(answer)


def test_a_marked_run_and_the_same_without_marks_differ_by_nothing(tmp_path: Path) -> None:
    marked = answer_for(tmp_path / "a", [*step(0, 3), *step(100, 4)])
    # a checkpoint at the end, so that the phases are no sequence that repeats
    events = [*step(0), *step(100), mark("checkpoint", 199_000, 1000)]
    whole = answer_for(tmp_path / "b", events)
    assert [s["count"] for s in whole["steps"]] == [2]
    difference = compare(typed(marked), typed(whole))
    assert difference.kernels == () and difference.step.before_ns == difference.step.after_ns == 100 * MS
    train = next(c for c in difference.phases if c.what == "policy_worker/train")
    assert train.before_ns == train.after_ns == 38 * MS
    assert any("a window of 2 steps" in note for note in difference.notes)


def test_windows_apart_that_nothing_numbers_are_not_one(tmp_path: Path) -> None:
    """Two traces of unknown steps, an hour apart: the window is not an hour."""
    for i, name in enumerate(("a", "b")):
        path = tmp_path / name / "trace.pt.trace.json.gz"
        write_trace(path, step(0), base_ns=10**18 + i * 3600 * 10**9, host_name="n0")
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert max(s["duration_ns"] for s in answer["steps"]) < 1000 * MS
    assert "3600 s" not in said(answer)


def test_a_worker_without_phases_is_not_called_uncaptured(tmp_path: Path) -> None:
    events = [mark("step 3", 0, 100_000), launch(10, 1), kernel("gemm", 20, 1000.0, correlation=1)]
    name = "reward_worker_rank0_step3-3_n0_7.pt.trace.json.gz"
    write_trace(
        tmp_path / "profiles/torch/reward_worker/rank0" / name, events, base_ns=10**18, host_name="n0"
    )
    answer = answer_for(tmp_path, step(0, 3), "3-3")
    text = " ".join(said(answer).split())
    assert "reward_worker │ marks no phase │ 100 ms" in text
    assert "reward_worker │ not captured" not in text


@pytest.mark.parametrize("overlap_us", [0, 45_000])
def test_two_roles_that_mark_no_step_are_cut_once(tmp_path: Path, overlap_us: int) -> None:
    """The trainer's first phase begins 60 ms into the step; where its training goes on beside the next
    generation, nothing tells one cut from another.
    """
    plans = {
        "rollout": [("generation", 0, 55_000), ("weight_sync", 90_000, 8_000)],
        "policy_worker": [("logprob", 60_000, 8_000), ("train", 70_000, 18_000 + overlap_us)],
    }
    for role, plan in plans.items():
        events, number = [kernel("first", 0, 10), kernel("last", 299_990, 10)], 0
        for step in range(3):
            for phase, at, takes in plan:
                number += 1
                began = step * 100_000 + at
                took = min(takes, 300_000 - began)
                events += [mark(phase, began, took), launch(began, number)]
                events.append(kernel("gemm", began + 10, took - 20, correlation=number))
        name = f"{role}_rank0_step3-5_n0_{len(role)}.pt.trace.json"
        path = tmp_path / "profiles/torch" / role / "rank0" / name
        write_trace(path, events, None, 1_790_857_026_000_000_000, host_name="n0")
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    lengths = [step["duration_ns"] for step in answer["steps"]]
    assert (lengths == [100_000_000] * 3) == (not overlap_us)
