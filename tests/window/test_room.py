"""A node's disk that is short of room: no window opens, whoever drives it, and the manifest says why."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.needs import need
from tests.small_disk import small_disk
from tests.supervisor.steps.test_windows import REQUEST, claim_session, demand
from tests.waits import wait_until
from tests.window.test_matrix import Job, ask, rows_of

from rlprof_ops.collect.event_logs import read_node
from rlprof_ops.host.foreign import read_rows
from rlprof_ops.request import CaptureSpec, Steps, Window
from rlprof_ops.runtime.on_demand.watcher import CaptureRequest
from rlprof_ops.runtime.process.event_log import EventLog, log_once
from rlprof_ops.runtime.process.worker_identity import find_identity
from rlprof_ops.supervisor.steps.session_windows import Windows
from rlprof_ops.window import captures
from rlprof_ops.window.output_dir import OutputDir
from rlprof_ops.window.room import free_bytes, kept_bytes, lack_of_room

KNOB = "RLPROF_SYNC_KEEP_FREE_MIB"
MORE_THAN_ANY_DISK_HAS = "99999999"
SHORT = f"stay free for the program ({KNOB}): make room, lower that, or have RLPROF_NODE_ROOT on a larger"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_how_much_is_kept_free(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "20m") as disk:
        assert kept_bytes(disk, None) == 2 << 20
        assert kept_bytes(disk, 0) == 0 and kept_bytes(disk, 7) == 7 << 20
        assert free_bytes(disk) <= 20 << 20


@pytest.mark.parametrize(
    ("knob", "refused"), [("", True), ("0", False), ("1", False), ("9", True), ("?", True)]
)
def test_a_disk_of_which_less_is_free_takes_no_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knob: str, refused: bool
) -> None:
    monkeypatch.setenv(KNOB, knob)
    with small_disk(tmp_path / "disk", "20m") as disk:
        assert not lack_of_room(disk) or knob == "9"
        (disk / "ballast").write_bytes(bytes((18 << 20) + 4096))
        assert bool(lack_of_room(disk)) is refused
        assert bool(lack_of_room(tmp_path, disk)) is refused, "the second folder counts too"
        if refused:
            assert f" are free where {disk} is, and " in lack_of_room(disk) and SHORT in lack_of_room(disk)


def test_what_cannot_be_asked_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KNOB, MORE_THAN_ANY_DISK_HAS)
    assert lack_of_room(tmp_path / "not there") == ""


@pytest.mark.parametrize("driver", ["process", "supervisor"])
def test_a_process_opens_none_and_trains_on(job: Job, driver: str) -> None:
    """`supervisor`: it hears steps that others tell."""
    need("torch")
    captures = [{"backend": "torch", "workers": "policy", "steps": "2, 4"}]
    job.train(driver, captures, **{KNOB: MORE_THAN_ANY_DISK_HAS})
    rows = rows_of(job, captures)
    assert [row["state"] for row in rows.values()] == ["missing", "missing"]
    assert all(SHORT in row["reason"] for row in rows.values()), rows
    assert not list((job.node_dir / "tmp").iterdir())


def test_one_on_demand_neither(job: Job) -> None:
    need("torch")
    steps = CaptureRequest("steps", ("policy",), None, "torch", {}, 2, None)
    seconds = CaptureRequest("seconds", ("policy",), None, "torch", {}, None, 0.2)
    ended = ask(job, steps, seconds, **{KNOB: MORE_THAN_ANY_DISK_HAS})
    assert {name: row["event"] for name, row in ended.items()} == {"steps": "failed", "seconds": "failed"}
    assert all(SHORT in row["reason"] for row in ended.values()), ended


@dataclass
class Recorder:
    """One whose tool writes `step_bytes` at each look to `scratch`, or would with its report where None."""

    disk: Path
    writes: bool
    suffix: str = ".nsys-rep"
    most_bytes: float = 0.0
    held: int = 0

    def __post_init__(self) -> None:
        if self.writes:
            self.scratch = (self.disk,)
        else:
            self.most_bytes = 1e12

    def open(self, target: Path) -> None:
        self.target = target

    def size_bytes(self) -> int:
        self.held += 1 << 20
        if self.writes:
            (self.disk / "storage.dat").write_bytes(bytes(self.held))
        return self.held

    def entered(self, step: int) -> None:
        pass

    def close(self) -> Path:
        self.target.write_bytes(b"NVIDIA Tegra Profiler Report ... [END]")
        return self.target


@pytest.mark.parametrize("writes", [True, False])
def test_an_open_window_closes_before_it_takes_the_last_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    monkeypatch.setattr(captures, "_SIZE_S", 0.01)
    with small_disk(tmp_path / "disk", "20m") as disk:
        taken = Recorder(disk, writes)
        events = EventLog(tmp_path / "events.jsonl")
        who = find_identity("policy", 0, 1, {"RLPROF_NODE_DIR": str(tmp_path)})
        tmp = tmp_path if writes else disk
        found = captures.Captures(who, tmp_path, tmp, events, OutputDir("", log_once), lambda *_: (taken, ""))
        found.add(CaptureSpec(workers=("*",), steps=Steps.of([Window(2, 9)])))
        found.enter(2)
        assert found.any_open
        wait_until(lambda: not found.any_open, 60)
        free = free_bytes(disk) - (0 if writes else taken.held)
        assert 0 < free < 2 << 20, "1 MiB a look, and 2 MiB are kept"
        log = tmp_path / "events.jsonl"
        wait_until(lambda: len(read_rows(log)) == 2)
    _, closed = read_rows(log)
    assert closed["event"] == "closed" and closed["partial"], closed
    assert closed["reason"].startswith("closed with 1") and SHORT in closed["reason"], closed


def test_a_session_neither_whoever_asks_its_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tmp", "events", "profiles"):
        (tmp_path / name).mkdir()
    claim_session(tmp_path, monkeypatch)
    monkeypatch.setenv(KNOB, MORE_THAN_ANY_DISK_HAS)

    async def steps() -> None:
        windows = Windows(tmp_path, REQUEST, print)
        for step in (1, 2, 3, 4):
            await windows.begin(step)
            windows.end(step)
        assert not await windows.ask("rlprof-test", "start"), "by its trainer's own calls"
        await windows.take_seconds(demand("seconds", seconds=0.1))
        await windows.close()

    asyncio.run(steps())
    found = [event for log in read_node(tmp_path / "events") for event in log.windows]
    assert [event.event for event in found] == ["failed"] * 3
    assert all(SHORT in event.reason for event in found), found
    assert (
        not (tmp_path / "bin/nsys.calls").exists() or "start" not in (tmp_path / "bin/nsys.calls").read_text()
    )
