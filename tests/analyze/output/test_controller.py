"""A phase that only the controller marks, for the workers that do it were not captured, counts by its row."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.output.test_answer import check_sums, validate
from tests.analyze.shared import kernel, launch, mark, write_trace

BASE_NS = 1_790_857_026_000_000_000
STEPS = (3, 4, 5)


def test_generation_that_only_the_controller_knows_is_the_longest_phase(tmp_path: Path) -> None:
    told = [mark(f"step {n}", 100_000 * i, 100_000) for i, n in enumerate(STEPS)]
    phases = [("gen", 0, 52_000), ("update_actor", 54_000, 44_000)]
    told += [mark(name, 100_000 * i + at, long) for i in range(3) for name, at, long in phases]
    report(tmp_path, "controller", 0, told)
    for rank in (0, 1):
        events = [mark(f"step {n}", 100_000 * i, 100_000) for i, n in enumerate(STEPS)]
        for i in range(3):
            events += [mark("train", 100_000 * i + 55_000, 40_000), launch(100_000 * i + 55_000, i + 1)]
            events.append(kernel("gemm", 100_000 * i + 56_000, 38_000, correlation=i + 1))
        report(tmp_path, "policy_worker", rank, events)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    check_sums(answer)
    [longest] = [each for each in answer["findings"] if each["kind"] == "phase"]
    assert (longest["worker"], longest["phase"], longest["cost_ns"]) == (
        "controller",
        "generation",
        52_000_000,
    )
    assert {each["kind"] for each in answer["what_if"]} == {"faster"}  # and not one more controller


def report(folder: Path, worker: str, rank: int, events: list[dict[str, object]]) -> None:
    name = f"{worker}_rank{rank}_step3-5_n0_{10 + rank}.pt.trace.json"
    path = folder / "profiles/torch" / worker / f"rank{rank}" / name
    write_trace(path, events, None, BASE_NS, host_name="n0")
