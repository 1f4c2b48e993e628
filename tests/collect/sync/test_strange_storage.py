"""The sync on storage that is no local disk: no hard links, no renaming over a file, names that others see
late, handles that go stale. A FUSE file system plays it (tests/strange_storage.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.needs import need
from tests.strange_storage import Storage, strange

from rlprof_ops.collect.drain.drain_steps import write_node_record
from rlprof_ops.collect.sync.sync_pass import Syncer
from rlprof_ops.host import atomic

pytestmark = pytest.mark.timeout(120)
REPORT = "profiles/nsight/w/rank0/w_rank0_step3-4_n1_7.nsys-rep"
LOG = "logs/raylet.out"


@pytest.fixture(autouse=True)
def fuse() -> None:
    need("fuse")


class Node:
    """A node's folder, and its sync onto a mount of the run folder."""

    def __init__(self, folder: Path, name: str, run: Path) -> None:
        self.folder, self.name, self.run = folder / name, name, run
        self.folder.mkdir()
        self.said: list[str] = []
        self.syncer = Syncer(self.folder, run, name, log=self.said.append)

    def put(self, relative: str, data: bytes) -> None:
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as stream:
            stream.write(data)

    def last_pass(self) -> None:
        report = self.syncer.pass_(last=True)
        assert report.complete, (report, self.said)


@pytest.fixture
def backing(tmp_path):
    return tmp_path / "server"


@pytest.mark.parametrize(
    "how", ["no-links", "no-replace", "no-links,no-replace", "no-links,late=1", "late=1"]
)
def test_all_comes_home_whole_and_nothing_is_overwritten(tmp_path, backing, how):
    """Two nodes, each through a mount of its own, with a report of the same name, and one that is there
    already but for the journal.
    """
    with strange(tmp_path / "m1", backing, how), strange(tmp_path / "m2", backing, how):
        nodes = [Node(tmp_path, "n1", tmp_path / "m1"), Node(tmp_path, "n2", tmp_path / "m2")]
        for node in nodes:
            node.put(REPORT, f"report of {node.name}".encode() * 1000)
            node.put(f"profiles/torch/w/rank0/{node.name}.pt.trace.json.gz", b"trace" * (1 << 19))
            node.put(LOG, b"one\n")
            node.syncer.pass_()
            node.put(LOG, b"two\n")
            node.last_pass()
        again = Node(tmp_path, "again", tmp_path / "m2")  # a sync that lost its journal
        again.put(REPORT, b"report of n1" * 1000)
        again.last_pass()

        folder = (backing / REPORT).parent
        found = {path.name: path.read_bytes()[:12] for path in folder.iterdir()}
        assert sorted(found.values()) == [b"report of n1", b"report of n2"], found
        for node in nodes:
            assert (backing / f"logs/{node.name}/raylet.out").read_bytes() == b"one\ntwo\n"
            trace = backing / f"profiles/torch/w/rank0/{node.name}.pt.trace.json.gz"
            assert trace.stat().st_size == 5 << 19
            for clean in (False, True):  # salvage writes it once more
                write_node_record(node.folder, node.run, node.name, {"clean": clean})
            assert json.loads((backing / f"nodes/{node.name}.json").read_text())["clean"] is True
        atomic.write(tmp_path / "m1/run.json", "{}", durable=True)
        atomic.write(tmp_path / "m1/run.json", '{"end": 1}', durable=True)
        assert (backing / "run.json").read_text() == '{"end": 1}'
    left = [path for path in backing.rglob("*") if path.is_file() and path.name.startswith(".")]
    assert not left and not any(path.is_file() for path in (backing / ".sync").rglob("*")), left


def test_a_log_goes_on_when_the_handle_of_its_copy_is_stale(tmp_path, backing):
    with strange(tmp_path / "mount", backing, "no-links") as storage:
        assert isinstance(storage, Storage)
        node = Node(tmp_path, "n1", tmp_path / "mount")
        lines = b""
        for number in range(4):
            line = f"line {number}\n".encode()
            lines += line
            node.put(LOG, line)
            node.syncer.pass_()
            storage.make_stale("logs/n1/raylet.out")
        node.last_pass()
        assert (backing / "logs/n1/raylet.out").read_bytes() == lines, node.said
        assert sorted(path.name for path in (backing / "logs/n1").iterdir()) == ["raylet.out"]
