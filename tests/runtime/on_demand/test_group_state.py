"""What a process tells of its groups: also where torch is older, and where a job was suspended.

Real groups are in tests/recorder/test_hung_ranks.py.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlprof_ops.runtime.on_demand import arrivals, group_state
from rlprof_ops.runtime.on_demand.group_state import GroupState, GroupTeller, read

NS = 10**9


class Watching:
    """The part of the watcher that a teller uses."""

    def __init__(self) -> None:
        self.again: list[float] = []
        self.actions: list[Callable[[], None]] = []

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.again.append(seconds)
        self.actions.append(action)


def dump(begun: int, ended: int) -> bytes:
    entry = {
        "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce", "is_p2p": False,
        "collective_seq_id": begun, "retired": begun == ended, "timeout_ms": 600000,
    }  # fmt: skip
    counts = {"last_enqueued_collective": str(begun), "last_completed_collective": str(ended)}
    return json.dumps({"pg_status": {"0": counts}, "entries": [entry]}).encode()


class Group:
    group_name = "0"


class Process:
    """A process with one group, its clock, and its teller."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **c10d: Any) -> None:
        self.path, self.now_ns, self.cpu_ns = folder / "marks/7.groups", 1000 * NS, 0
        not_in_it = -100  # torch's GroupMember.NON_GROUP_MEMBER stands for the group of others
        world = SimpleNamespace(pg_group_ranks={not_in_it: {2: 0}, Group(): {1: 1, 0: 0}})
        dist = SimpleNamespace(
            is_initialized=lambda: True,
            get_rank=lambda: 1,
            get_world_size=lambda: 2,
            distributed_c10d=SimpleNamespace(_world=world),
        )
        monkeypatch.setitem(sys.modules, "torch.distributed", dist)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**c10d))  # type: ignore[arg-type]
        clock = SimpleNamespace(time_ns=lambda: self.now_ns, thread_time_ns=lambda: self.cpu_ns)
        monkeypatch.setattr(group_state, "time", clock)
        monkeypatch.delenv("RLPROF_NODE_DIR", raising=False)
        self.teller, self.watching = GroupTeller(self.path, "w"), Watching()

    def look(self, after_s: float = 5) -> GroupState:
        self.now_ns += int(after_s * NS)
        self.teller.tell(self.watching)  # type: ignore[arg-type]
        found = read(self.path)
        assert found is not None
        return found


def test_a_collective_that_stays_open_is_told_with_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(tmp_path, monkeypatch, _dump_fr_trace_json=lambda *_: dump(4, 3))
    assert process.look().group == "" and process.look().at == ""
    told = process.look()
    assert (told.group, told.sequence, told.operation) == ("default_pg", 4, "all_reduce")
    assert (told.members, told.timeout_s, told.rank) == ((0, 1), 600.0, 1)
    assert told.t_ns - told.since_ns == 10 * NS and process.watching.again == [5.0, 15.0, 5.0, 5.0]


def test_one_that_has_ended_is_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path, monkeypatch, _dump_fr_trace_json=lambda *_: dump(4, 4))
    assert [process.look().group for _ in range(4)] == [""] * 4


def test_a_torch_without_counters_tells_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path, monkeypatch)
    told = [process.look() for _ in range(4)]
    assert {each.group for each in told} == {""} and {each.rank for each in told} == {1}


def test_time_in_which_the_job_was_suspended_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(tmp_path, monkeypatch, _dump_fr_trace_json=lambda *_: dump(4, 3))
    process.look(), process.look(), process.look()
    told = process.look(after_s=3600)
    assert told.since_ns == told.t_ns and told.group == ""


def test_a_source_file_that_does_not_answer_holds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(group_state, "_READ_S", 0.1)
    silent = SimpleNamespace(getline=lambda *_: str(never.wait(60)))
    monkeypatch.setattr(group_state, "linecache", silent)
    process = Process(tmp_path, monkeypatch, _dump_fr_trace_json=lambda *_: dump(4, 3))
    monkeypatch.setattr(group_state, "where", lambda: ("/dead/train.py", 41))
    try:
        assert [process.look().at for _ in range(4)][2:] == ["at /dead/train.py:41"] * 2
    finally:
        never.set()


def calls(count: int, name: str = "gloo:all_reduce") -> bytes:
    """The flight recorder's last `count` collectives, 40 ms apart, without the stacks."""
    entry = {"process_group": ("0", "default_pg"), "profiling_name": name, "is_p2p": False}
    return pickle.dumps(
        {
            "entries": [
                {**entry, "collective_seq_id": number, "time_created_ns": 900 * NS + number * NS // 25}
                for number in range(1, count + 1)
            ]
        }
    )


def minutes(process: Process, count: int = 1) -> list[arrivals.Arrivals | None]:
    """What lies beside the teller's file after each of so many full minutes."""
    found = []
    for _ in range(count):
        process.now_ns = (process.now_ns // (60 * NS) + 1) * 60 * NS
        process.watching.actions[1]()
        found.append(arrivals.read(process.path.with_suffix(".arrivals")))
        process.path.with_suffix(".arrivals").unlink(missing_ok=True)
    return found


def test_when_collectives_were_called_is_told_each_minute_in_which_there_were_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, taken = [4], list[tuple[object, ...]]()

    def trace(*how: object) -> bytes:
        taken.append(how)
        return calls(begun[0])

    counts = {"_dump_fr_trace_json": lambda *_: dump(begun[0], begun[0])}
    process = Process(tmp_path, monkeypatch, _dump_fr_trace=trace, **counts)
    process.look()
    told, again = minutes(process, 2)
    assert told is not None and again is None and taken == [(True, False, False)], "once, without stacks"
    assert (told.world, told.rank, told.t_ns) == ("w", 1, 1020 * NS)
    assert told.groups == (arrivals.MetGroup("0", "default_pg", "gloo", (0, 1)),)
    assert [(each.operation, each.sequence) for each in told.calls()] == [
        ("all_reduce", number) for number in (1, 2, 3, 4)
    ]
    assert told.calls()[3].t_ns == 900 * NS + 4 * NS // 25
    begun[0] = 9
    process.look()
    assert minutes(process)[0] is not None


def test_nothing_is_asked_where_there_is_nccl_or_where_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's recorder queries CUDA events that may be gone; a recorder of 200,000 entries takes seconds."""

    def never(*_: object) -> bytes:
        raise AssertionError("it was asked")

    both = {name: (lambda *_: dump(4, 4)) for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json")}
    process = Process(tmp_path, monkeypatch, _dump_nccl_trace=never, _dump_fr_trace=never, **both)
    process.look()
    assert minutes(process, 2) == [None, None]

    def slow(*_: object) -> bytes:
        process.cpu_ns += NS
        return calls(4)

    begun = [4]
    counts = {"_dump_fr_trace_json": lambda *_: dump(begun[0], begun[0])}
    process = Process(tmp_path, monkeypatch, _dump_fr_trace=slow, **counts)
    process.look()
    assert minutes(process)[0] is not None
    begun[0] = 5
    process.look()
    assert minutes(process) == [None]


def test_what_is_told_fits_into_the_file_that_is_read(tmp_path: Path) -> None:
    group = arrivals.MetGroup("0", "default_pg", "gloo", tuple(range(4096)))
    many = [arrivals.Call(0, "all_reduce", 10**9 * n, 10**18 + n * 10**12) for n in range(1, 2001)]
    path = tmp_path / "marks/7.arrivals"
    arrivals.write(path, arrivals.packed(many, (group,), "w", 1, 0, 7))
    told = arrivals.read(path)
    assert path.stat().st_size <= 64 << 10 and told is not None
    assert told.calls() == many[-len(told.calls()) :] and len(told.calls()) > 500
