"""A step of one rank in several reports: parts of it, or the same time by two profilers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.run.test_foreign_reports import BASE_NS, MS, answered
from tests.analyze.shared import kernel, mark, write_trace

# phase -> its begin and length in µs, as three windows of `each: phase` have them
PHASES = {"ref_logprob": (1_000, 20_000), "train": (30_000, 50_000), "weight_sync": (90_000, 10_000)}


def write_parts(folder: Path, phases: dict[str, tuple[int, int]] = PHASES, steps: int = 1) -> None:
    for step in range(3, 3 + steps):
        for phase, (start, length) in phases.items():
            name = f"policy_worker_rank0_step{step}-{step}_{phase.replace('_', '-')}_n0_7.pt.trace.json.gz"
            begin = start + (step - 3) * 200_000
            events: list[dict[str, Any]] = [
                mark(f"step {step}", begin - 500, length + 1_000),
                mark(phase, begin, length),
                kernel("a", begin + 100, length // 2),
            ]
            place = folder / "profiles" / "torch" / "policy_worker" / "rank0" / name
            write_trace(place, events, None, BASE_NS, host_name="n0")


def test_phases_in_reports_of_their_own_are_one_step(tmp_path: Path) -> None:
    write_parts(tmp_path, steps=2)
    answer = answered(tmp_path)
    assert [s["step"] for s in answer["steps"]] == [3, 4] and len(answer["ranks"]) == 1
    for row in answer["anatomy"]:
        told = {answer["phase_names"][p["phase"]]: p["duration_ns"] for p in row["phases"]}
        assert told == {phase: length * 1000 for phase, (_, length) in PHASES.items()}
        assert row["duration_ns"] == 100 * MS and row["gpu"]["compute_ns"] == 40 * MS
        # 3 times half a millisecond before and after were recorded; what lies between was not
        assert row["idle_ns"] == 20 * MS and row["uncaptured_ns"] >= 17 * MS
    chain = answer["critical_path"]["steps"][0]
    assert [link["phase"] for link in chain["links"]] == list(PHASES)


def test_the_same_time_by_two_profilers_counts_once(tmp_path: Path) -> None:
    write_parts(tmp_path)
    whole = [mark("step 3", 0, 101_000), *(mark(p, a, b) for p, (a, b) in PHASES.items())]
    place = tmp_path / "profiles" / "torch" / "policy_worker" / "rank0"
    write_trace(
        place / "policy_worker_rank0_step3-3_n0_7.pt.trace.json", whole, None, BASE_NS, host_name="n0"
    )
    (row,) = answered(tmp_path)["anatomy"]
    assert sum(p["duration_ns"] for p in row["phases"]) == 80 * MS and row["duration_ns"] == 101 * MS
