"""The node folder of a job whose storage took the last record only after the folder was cleared."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.supervisor.nodes import place_of

from rlprof_ops.collect.drain import drain_steps
from rlprof_ops.host.background import BackgroundWriter
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.supervisor import node_task
from rlprof_ops.supervisor.node.node import Node
from rlprof_ops.supervisor.node.node_state import FOLDER, NodeState
from rlprof_ops.supervisor.run_record import RunRecord


class Ending:
    """The end of a head: its drain clears the node folder while run.json is still on its way."""

    spared: list[str]

    def __init__(self, node: Node) -> None:
        self.node = node

    async def run(self) -> int:
        node = self.node
        record = RunRecord.of(node.place, node.settings, node.request, node.state, node.journal.writer)
        record.ending(EndCause.DRIVER_EXIT)
        drain_steps.clear(node.place.folder.path, spare=(FOLDER,), say=node.journal.note)
        Ending.spared = sorted(path.name for path in node.place.folder.path.iterdir())
        return 0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeContext:
    monkeypatch.setattr(node_task, "Head", Ending)
    found = place_of(tmp_path)
    found.run.write_token()
    return found


def supervise(place: NodeContext) -> int:
    """A whole life of the node, but for its keeper."""
    state = NodeState.make(place.folder.path)
    try:
        return node_task.supervise(Settings.load({}), place, Path.cwd(), "", state.driver)
    finally:
        state.remove()
        place.folder.let_go()


def test_it_goes_when_a_slow_storage_has_taken_the_record(place, monkeypatch):
    real = BackgroundWriter._error_of

    def slow(self: BackgroundWriter, write: Any, path: Path, data: bytes) -> OSError | None:
        if path.name == "run.json":
            time.sleep(0.5)
        return real(self, write, path, data)

    monkeypatch.setattr(BackgroundWriter, "_error_of", slow)

    assert supervise(place) == 0

    assert Ending.spared == ["keep", "state"]
    assert json.loads(place.run.run_json.read_text())["end"]["cause"] == "driver_exit"
    assert not place.folder.path.exists()


def test_it_stays_with_the_record_that_the_storage_did_not_take(place, monkeypatch):
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(BackgroundWriter, "_error_of", lambda *_: full)

    assert supervise(place) == 0

    assert [path.name for path in place.folder.path.rglob("*")] == ["keep", "run.json"]
