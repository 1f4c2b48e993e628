"""Communicators are what they are called or who is in them; a description that two share is neither."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.output.test_answer import check_sums, validate
from tests.analyze.shared import kernel, launch, mark, write_trace

BASE_NS = 1_790_857_026_000_000_000
LATE_US = 5000.0


def write_rank(
    folder: Path,
    rank: int,
    host: str,
    *,
    group: int,
    late_us: float = 0.0,
    named: bool = True,
    ranks: str | None = None,
    in_world: int | None = None,
    world: int = 4,
    description: str = "TENSOR_MODEL_PARALLEL_GROUP",
) -> None:
    """One rank with 20 all-reduces in a tensor-parallel group of two that is `late_us` behind the other.

    The hosts' clocks are equal: every difference between the groups is real lateness.
    """
    rng = random.Random(group)
    own = random.Random(rank + 100)
    says: dict[str, Any] = {
        "Collective name": "allreduce",
        "dtype": "BFloat16",
        "In msg nelems": 1_000_000,
        "Out msg nelems": 1_000_000,
        "Group size": 2,
        "Process Group Description": description,
    }
    if named:
        says["Process Group Name"] = str(group)
    if ranks:
        says["Process Group Ranks"] = ranks
    events = [mark("step 3", 0, 50_000), mark("train", 100, 49_000)]
    for i in range(20):
        end = 2000 * (i + 1) + late_us + rng.random() + own.random()
        events.append(launch(end - 1000, i + 1))
        events.append(kernel("ncclDevKernel_AllReduce_Sum_bf16", end - 600, 600, 20, 0, i + 1, **says))
    name = f"policy_worker_rank{rank}_step3-3_{host}_{1000 + rank}.pt.trace.json.gz"
    write_trace(
        folder / "profiles/torch/policy_worker" / f"rank{rank}" / name,
        events,
        None,
        BASE_NS,
        host_name=host,
        distributedInfo={
            "backend": "nccl",
            "rank": rank if in_world is None else in_world,
            "world_size": world,
        },
    )


@pytest.mark.parametrize(
    "told",
    [
        {"named": True},
        {"named": False, "listed": True},
        {"named": False},
    ],
    ids=["by name", "by members", "by nothing"],
)
def test_two_groups_of_one_description_are_not_one(tmp_path: Path, told: dict[str, bool]) -> None:
    """Group 0 on host n0 and group 1 on n1, the latter 5 ms late: no offset follows from that."""
    for rank in range(4):
        group = rank // 2
        write_rank(
            tmp_path,
            rank,
            f"n{group}",
            group=group,
            late_us=LATE_US * group,
            named=told["named"],
            ranks=str([2 * group, 2 * group + 1]) if told.get("listed") else None,
        )
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    check_sums(answer)
    assert [c["offset_ns"] for c in answer["clocks"]["hosts"]] == [0, 0]
    assert answer["clocks"]["residual_ns"] is None  # nothing was shared, and that is said
    assert all(skew["ranks"] == 2 for skew in answer["skews"])
    assert all(skew["skew_ns"] < 100_000 for skew in answer["skews"])


def test_one_group_over_two_hosts_still_aligns_them(tmp_path: Path) -> None:
    for rank in range(4):
        write_rank(tmp_path, rank, f"n{rank % 2}", group=rank // 2, late_us=LATE_US * (rank // 2))
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert all(abs(c["offset_ns"]) < 2000 for c in answer["clocks"]["hosts"])
    assert answer["clocks"]["residual_ns"] is not None
    assert [skew["ranks"] for skew in answer["skews"]] == [2, 2]


def test_worlds_that_count_alike_are_not_one(tmp_path: Path) -> None:
    """Two vLLM engines on two hosts: in each the ranks are 0 and 1 and the group's name is "3"."""
    for rank in range(4):
        engine = rank // 2
        write_rank(
            tmp_path,
            rank,
            f"n{engine}",
            group=3,
            late_us=LATE_US * engine,
            ranks="[0, 1]",
            in_world=rank % 2,
            world=2,
        )
    answer = answer_of(tmp_path, jobs=1, cache=False)
    assert [c["offset_ns"] for c in answer["clocks"]["hosts"]] == [0, 0]
    assert answer["clocks"]["residual_ns"] is None and answer["skews"] == []


@pytest.mark.parametrize("windows", [1, 3, 12])
def test_the_wait_of_a_step_is_the_same_however_many_windows_there_are(tmp_path: Path, windows: int) -> None:
    """20 calls of one step, in each of which rank 0 waits for rank 1; a window holds one step."""
    for window in range(windows):
        for rank in (0, 1):
            events = [mark(f"step {window}", 0, 50_000), mark("train", 100, 49_000)]
            for i in range(20):
                start, end = 2000 * i + (500 + 300 * rank), 2000 * i + 1500
                said = {"Collective name": "allreduce", "Group size": 2, "Process Group Name": "0"}
                events.append(launch(2000 * i, i + 1))
                events.append(
                    kernel("ncclDevKernel_AllReduce_Sum_f32", start, end - start, 20, 0, i + 1, **said)
                )
            name = f"policy_worker_rank{rank}_step{window}-{window}_n0_{1000 + rank}.pt.trace.json.gz"
            base = BASE_NS + window * 1_000_000_000
            told = {"backend": "nccl", "rank": rank, "world_size": 2}
            path = tmp_path / f"profiles/torch/policy_worker/rank{rank}" / name
            write_trace(path, events, None, base, host_name="n0", distributedInfo=told)
    answer = answer_of(tmp_path, jobs=1, cache=False)
    validate(answer)
    [skew] = answer["skews"]
    assert (skew["calls"], skew["steps"]) == (20, 1)
    [found] = [each for each in answer["findings"] if each["kind"] == "skew"]
    assert found["cost_ns"] == 20 * 150_000, "a mean over both ranks, of which one waits 300 µs a call"
