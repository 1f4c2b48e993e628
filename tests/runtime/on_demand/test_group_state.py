"""What a process tells of its groups: also where torch is older, and where a job was suspended.

Real groups are in tests/recorder/test_hung_ranks.py.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlprof_ops.runtime.on_demand import group_state
from rlprof_ops.runtime.on_demand.group_state import GroupState, GroupTeller, read

NS = 10**9


class Watching:
    """The part of the watcher that a teller uses."""

    def __init__(self) -> None:
        self.again: list[float] = []

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.again.append(seconds)


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
        self.path, self.now_ns = folder / "marks/7.groups", 1000 * NS
        world = SimpleNamespace(pg_group_ranks={Group(): {1: 1, 0: 0}})
        dist = SimpleNamespace(
            is_initialized=lambda: True, get_rank=lambda: 1, distributed_c10d=SimpleNamespace(_world=world)
        )
        monkeypatch.setitem(sys.modules, "torch.distributed", dist)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**c10d))  # type: ignore[arg-type]
        monkeypatch.setattr(group_state, "time", SimpleNamespace(time_ns=lambda: self.now_ns))
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
    assert told.t_ns - told.since_ns == 10 * NS and process.watching.again == [5.0] * 3


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
