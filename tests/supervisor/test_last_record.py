"""The node folder of a job whose storage took the last record only after the folder was cleared."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlprof_ops.collect.drain import steps
from rlprof_ops.host import background
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.folders import RunFolder, node_folder
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.request import ProfileRequest
from rlprof_ops.supervisor import __main__ as supervisor_main
from rlprof_ops.supervisor.node_drain import Journal
from rlprof_ops.supervisor.run_record import RunRecord


class Ending:
    """The end of a head: its drain clears the node folder while run.json is still on its way."""

    def __init__(self, tmp_path: Path) -> None:
        run, folder = RunFolder(tmp_path / "run"), node_folder(tmp_path, "7", "")
        run.create()
        folder.create()
        self.place = NodeContext(
            "7", "n1", "127.0.0.1", "127.0.0.1", 1, 2, True, ("n1",), run, folder, 0, "token"
        )
        self.journal = Journal(run.logs / "head.log", "n1", time.time())
        self.spared: list[str] = []

    async def run(self) -> int:
        record = RunRecord.of(
            self.place, Settings.load({}), ProfileRequest(captures=()), 1, self.journal.writer
        )
        record.ending(EndCause.DRIVER_EXIT)
        steps.clear(self.place.folder.path, say=self.journal.note)
        self.spared = sorted(path.name for path in self.place.folder.path.rglob("*"))
        return 0


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ending:
    found = Ending(tmp_path)
    monkeypatch.setattr(supervisor_main, "make_supervisor", lambda env, reins: found)
    return found


def test_it_goes_when_a_slow_storage_has_taken_the_record(ending, monkeypatch):
    def slow(writer: object, write: Callable[..., None], path: Path, data: bytes) -> None:
        if path.name == "run.json":
            time.sleep(0.5)
        write(path, data)

    monkeypatch.setattr(background.BackgroundWriter, "_error_of", slow)

    assert supervisor_main.main() == 0

    assert ending.spared == ["keep", "run.json"]
    assert json.loads(ending.place.run.run_json.read_text())["end"]["cause"] == "driver_exit"
    assert not ending.place.folder.path.exists()


def test_it_stays_with_the_record_that_the_storage_did_not_take(ending, monkeypatch):
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(background.BackgroundWriter, "_error_of", lambda *asked: full)

    assert supervisor_main.main() == 0

    assert [path.name for path in ending.place.folder.path.rglob("*")] == ["keep", "run.json"]
