"""What the nodes' processes do, as the head writes it down and `status` and `capture` read it."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from pathlib import Path

import pytest

from rlprof_ops.collect import job_state
from rlprof_ops.collect.harvest.run_state import observe
from rlprof_ops.collect.job_state import CaptureCounts
from rlprof_ops.host.background import BackgroundWriter
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.job.run_folder import Job
from rlprof_ops.operate import capture_request, job_status
from rlprof_ops.request import request_from_dict
from rlprof_ops.slurm.client import SlurmJob
from rlprof_ops.supervisor.steps.state_relay import EventTail, StateFile, StateTold

REQUEST = {"captures": [{"backend": "nsight", "workers": ["policy"], "steps": "3:5,7"}]}


class Node:
    """A node folder's events, and its tail."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self.events = name, path / "events"
        self.events.mkdir(parents=True)
        self.tail = EventTail(self.events)

    def event(self, of: int, **row: object) -> None:
        with open(self.events / f"policy_rank{of}.jsonl", "a") as file:
            file.write(json.dumps({"t_ns": 1, **row}) + "\n")

    def registers(self, rank: int) -> None:
        self.event(
            rank, event="registered", worker="policy", rank=rank, world_size=2, pid=100 + rank, host="h",
            on_demand=True, backends=["nsight"],
        )  # fmt: skip

    def window(self, rank: int, event: str, start: int, stop: int, **more: object) -> None:
        self.event(rank, event=event, backend="nsight", steps=[start, stop], phase=None, **more)

    def enters(self, rank: int, step: int) -> None:
        (self.events / f"policy_rank{rank}.step").write_bytes(struct.pack("<q", step))

    def tells(self, head: StateFile) -> None:
        rows, steps = self.tail.new()
        head.receive(self.name, StateTold(json.dumps([rows, steps])))


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "4711-logs"
    for name in ("logs", "nodes/n1/events", "nodes/n2/events", "control"):
        (folder / name).mkdir(parents=True)
    record = {
        "job": "4711", "nodes": ["n1", "n2"], "head": "n1", "request": REQUEST, "world": {},
        "driver": {"started_ns": 5, "ended_ns": None}, "end": {"cause": "running"},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def write(run: Path, *nodes: Node, up: int = 2) -> StateFile:
    """The head's state after it has heard the nodes, written down."""
    writer = BackgroundWriter()
    request = request_from_dict(REQUEST)
    head = StateFile(run / job_state.NAME, writer, request, "127.0.0.1:1", lambda: 0)
    for node in nodes:
        node.tells(head)
    head.up(up)
    asyncio.run(head.write())
    assert writer.flush(20)
    return head


def view_of(run: Path) -> job_status.View:
    return job_status.look(Job("4711", run, SlurmJob("4711", "train", "RUNNING")))


def test_status_and_capture_need_the_heads_word_alone(run, tmp_path):
    one, two = Node(tmp_path / "a", "n1"), Node(tmp_path / "b", "n2")
    one.registers(0)
    two.registers(1)
    one.window(0, "opened", 3, 5)
    one.window(0, "closed", 3, 5, path="profiles/x.nsys-rep")
    two.window(1, "opened", 3, 5)
    one.enters(0, 6)
    two.enters(1, 4)
    write(run, one, two)

    view = view_of(run)
    assert (view.nodes_up, view.step, view.captures) == (2, 6, CaptureCounts(4, done=1, open=1))
    assert [(each.name, each.node) for each in capture_request.registered(run)] == [
        ("policy rank 0", "n1"),
        ("policy rank 1", "n2"),
    ]


def test_the_head_counts_as_the_events_themselves_do(run, tmp_path):
    """Random jobs: what status says by the head's word is what it says when all events have come home."""
    rng = random.Random(7)
    for number in range(20):
        nodes = [Node(tmp_path / f"{number}a", "n1"), Node(tmp_path / f"{number}b", "n2")]
        for rank, node in enumerate(nodes):
            node.registers(rank)
            for start, stop in ((3, 5), (7, 8)):
                for event in ("opened", "closed", "failed")[: rng.randrange(4)]:
                    node.window(rank, event, start, stop, path="profiles/x")
            node.enters(rank, rng.randrange(1, 9))
        write(run, *nodes)
        by_head = view_of(run)
        for node in nodes:
            for path in node.events.iterdir():
                (run / "nodes" / node.name / "events" / path.name).write_bytes(path.read_bytes())
        (run / job_state.NAME).unlink()
        by_events = view_of(run)
        assert (by_head.step, by_head.captures) == (by_events.step, by_events.captures)


def test_an_answer_counts_when_its_report_is_there(run, tmp_path):
    node = Node(tmp_path / "a", "n1")
    node.registers(0)
    node.window(0, "closed", 3, 4, path="profiles/nsight/policy/rank0/r.nsys-rep", asked_by="q")
    node.registers(1)
    node.window(1, "failed", 3, 4, reason="no nsys", asked_by="q")
    write(run, node)
    workers = capture_request.registered(run)
    state = capture_request._state(run)

    first = capture_request._answers_of_head(run, workers, state, "q")
    assert [(each.worker.rank, each.reason) for each in first.values()] == [(1, "no nsys")]
    report = run / "profiles/nsight/policy/rank0/r.nsys-rep"
    report.parent.mkdir(parents=True)
    report.write_text("report")
    found = {
        worker.rank: each
        for worker, each in capture_request._answers_of_head(run, workers, state, "q").items()
    }
    assert found[0].path == report


def test_the_last_step_of_a_lost_node_is_the_one_that_the_head_heard(run, tmp_path):
    node = Node(tmp_path / "a", "n2")
    node.registers(1)
    node.enters(1, 41)
    write(run, node)
    (run / "nodes/n2/events/policy_rank1.jsonl").write_bytes(
        (node.events / "policy_rank1.jsonl").read_bytes()
    )

    with ContainedDir(run) as folder:
        (log,) = observe(folder).logs
    assert log.last_step == 41


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[" * 100_000,
        "[[[1]], {}]",
        '[[["f", []]], {}]',
        '[[["f", {"event": 3}]], {"f": "x"}]',
        "7",
        "{}",
    ],
)
def test_a_node_that_talks_nonsense_changes_nothing(run, text):
    head = write(run)
    before = (run / job_state.NAME).read_bytes()
    head.receive("n1", StateTold(text))
    asyncio.run(head.write())
    assert (run / job_state.NAME).read_bytes() == before


@pytest.mark.parametrize("text", [b"", b"[" * 100_000, b"{}", b'{"schema": 1}', b"\xff", b"null"])
def test_a_damaged_state_is_none(run, text):
    (run / job_state.NAME).write_bytes(text)
    with ContainedDir(run) as folder:
        assert job_state.read(folder) is None
    assert view_of(run).nodes_up is None


def test_a_torn_line_waits_and_one_without_end_is_left_out(tmp_path):
    node = Node(tmp_path / "a", "n1")
    path = node.events / "policy_rank0.jsonl"
    path.write_text('{"event": "registered", "worker": "policy"}\n{"event": "opened", ')
    assert [row["event"] for _, row in node.tail.new()[0]] == ["registered"]
    with open(path, "a") as file:
        file.write('"steps": [1, 2]}\n' + "x" * (3 << 20) + '\n{"event": "ended"}\n')
    rows = [row["event"] for _ in range(5) for _, row in node.tail.new()[0]]
    assert rows == ["opened", "ended"]
