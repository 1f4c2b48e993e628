"""Hosts that pause: the report says that the GPU stood idle, how often, and where the host was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.causes.host_faults import HostFaults
from tests.analyze.output.test_answer import check_sums, validate

SEEDS = range(3)
GC = ("user_annotation", "Python GC")
LOADER = ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
EVERY_SECOND = {
    "one rank": {(1, step): 120.0 for step in (2, 4, 6)},
    "all ranks": {(rank, step): 120.0 for step in (2, 4, 6) for rank in range(4)},
    "another rank each time": {(step % 4, step): 120.0 for step in (1, 3, 5)},
}


def made(folder: Path, seed: int, **planted: Any) -> tuple[dict[str, Any], float]:
    """The answer, and what a step is longer than without the fault, ns."""
    length_ms = HostFaults(seed, **planted).write(folder / "run")
    answer = answer_of(folder / "run", jobs=1, cache=False)
    validate(answer)
    check_sums(answer)
    return answer, 1e6 * (length_ms - HostFaults(seed).write(folder / "healthy"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("whose", EVERY_SECOND)
def test_pauses_every_second_step_are_the_first_finding(tmp_path: Path, seed: int, whose: str) -> None:
    answer, truth_ns = made(tmp_path, seed, why=GC, pauses=EVERY_SECOND[whose])
    first = answer["findings"][0]
    assert first["kind"] == "pause" and "120 ms at a time" in first["text"]
    assert "the host collects garbage (Python GC), in 3 of 6 steps" in first["text"]
    assert first["saves_ns"] == pytest.approx(truth_ns, rel=0.1)
    assert ("policy rank 1's GPU" in first["text"]) == (whose == "one rank")
    assert "gc.freeze()" in first["advice"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loader_that_all_ranks_wait_for_is_the_first_finding(tmp_path: Path, seed: int) -> None:
    pauses = {(rank, step): 60.0 for step in range(1, 7) for rank in range(4)}
    answer, truth_ns = made(tmp_path, seed, why=LOADER, pauses=pauses)
    first = answer["findings"][0]
    assert first["kind"] == "pause" and "while the host waits for data (enumerate" in first["text"]
    assert first["saves_ns"] == pytest.approx(truth_ns, rel=0.1)


@pytest.mark.parametrize(
    ("why", "says"),
    [
        (LOADER, "while the host waits for data (enumerate"),
        (("cuda_runtime", "cudaStreamSynchronize"), "while the host is in cudaStreamSynchronize"),
        (("cpu_op", "aten::_local_scalar_dense"), "while the host is in aten::_local_scalar_dense"),
        (("cpu_op", "gloo:recv"), "while the host waits in gloo:recv"),
        (("", ""), "while the host is in no call that the trace shows"),
    ],
)
def test_a_rank_that_is_slow_because_of_its_host_is_said_to_stand_idle(
    tmp_path: Path, why: tuple[str, str], says: str
) -> None:
    answer, _ = made(tmp_path, 1, why=why, pauses={(2, step): 60.0 for step in range(1, 7)})
    first = answer["findings"][0]
    assert first["kind"] == "straggler" and "rank 2" in first["text"]
    assert "Its GPU stands idle for 60.0 ms of it, " + says in first["text"]
    assert "pause" not in {f["kind"] for f in answer["findings"]}


@pytest.mark.parametrize("seed", SEEDS)
def test_launch_gaps_of_one_rank_and_of_all(tmp_path: Path, seed: int) -> None:
    one, _ = made(tmp_path / "one", seed, gaps_ms={2: 4.0})
    assert (
        "Its GPU stands idle for 48.0 ms of it, for the host launches too late" in one["findings"][0]["text"]
    )
    every, _ = made(tmp_path / "all", seed, gaps_ms=dict.fromkeys(range(4), 4.0))
    assert every["findings"][0]["kind"] == "host"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_with_longer_kernels_is_not_idle_and_an_even_run_has_no_pause(
    tmp_path: Path, seed: int
) -> None:
    slow, _ = made(tmp_path / "slow", seed, slower={2: 1.3})
    assert slow["findings"][0]["kind"] == "straggler" and "idle" not in slow["findings"][0]["text"]
    even, _ = made(tmp_path / "even", seed)
    assert not {"straggler", "pause", "skew"} & {f["kind"] for f in even["findings"]}
