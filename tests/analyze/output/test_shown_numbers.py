"""Numbers that were shown and were not what they were called."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.output.test_answer import validate
from tests.analyze.shared import mark, write_trace, x

from rlprof_ops.analyze.causes.stragglers import spreads
from rlprof_ops.analyze.run.clocks import Clocks, HostClock

MS = 1_000_000


def write(folder: Path, rank: int, steps: dict[int, float], talk_ms: float = 0.0) -> None:
    """A rank whose train takes so many ms in each step, of them `talk_ms` in a collective on the host."""
    events = []
    for step, length in steps.items():
        begin = step * 100_000.0
        events += [mark(f"step {step}", begin, 100_000), mark("train", begin, length * 1000)]
        if talk_ms:
            events.append(x("cpu_op", "gloo:all_reduce", begin + 10, talk_ms * 1000))
    name = f"policy_worker_rank{rank}_step{min(steps)}-{max(steps)}_n0_{100 + rank}.pt.trace.json.gz"
    place = folder / "profiles" / "torch" / "policy_worker" / f"rank{rank}"
    write_trace(place / name, events, base_ns=10**18, host_name="n0")


@pytest.mark.parametrize("talk_ms", [0.0, 5.0])
def test_time_in_collectives_is_a_mean_and_no_difference_of_means(tmp_path: Path, talk_ms: float) -> None:
    """Ranks with unequal numbers of steps: the mean over ranks is not the mean over steps."""
    write(tmp_path, 0, {1: 40, 2: 40, 3: 40}, talk_ms)
    write(tmp_path, 1, {1: 60}, talk_ms)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    assert answer["phases"][0]["communication_ns"] == round(talk_ms * MS)


def test_an_offset_is_that_of_the_run_and_not_of_1970() -> None:
    now = 1_790_000_000 * 10**9
    clocks = Clocks((HostClock("a", 0, 0.0, 0, 0, "reference", 0), HostClock("b", 0, 1.0, 5, 9, "probe", 0)))
    begun = Clocks((HostClock("b", 700, 1.0, 5, 9, "probe", now),))
    assert [h.offset_ns for h in clocks.as_rows(now).hosts] == [0, 1_790_000_000 * 1000]
    assert begun.as_rows(now).hosts[0].offset_ns == 700
    assert begun.as_rows(now + 10**9).hosts[0].offset_ns == 1700


def test_shares_of_operators_do_not_count_the_inner_ones_twice(tmp_path: Path) -> None:
    """An operator that fills half of the step, and one inside of it, are each half of the step."""
    events = [mark("step 1", 0, 100_000), mark("train", 0, 90_000)]
    events += [x("cpu_op", "aten::linear", 1_000, 50_000), x("cpu_op", "aten::addmm", 1_000, 50_000)]
    name = "policy_worker_rank0_step1-1_n0_100.pt.trace.json.gz"
    write_trace(tmp_path / "profiles" / "torch" / "policy_worker" / "rank0" / name, events, base_ns=10**18)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert {op["name"]: op["share"] for op in answer["ops"]} == {"aten::linear": 0.5, "aten::addmm": 0.5}


def test_nobody_spreads_over_nothing() -> None:
    assert spreads([]) == ()
