"""Dumps of PyTorch's flight recorder: home with the sync, of a bounded size in all, and said where they are
not.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlprof_ops.collect.drain.drain_steps import write_node_record
from rlprof_ops.collect.harvest.run_harvest import harvest
from rlprof_ops.collect.sync import routes
from rlprof_ops.collect.sync.__main__ import last_pass, record_pass
from rlprof_ops.collect.sync.sync_pass import Syncer

HALF = 512 << 10


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    node, run = tmp_path / "node", tmp_path / "run"
    node.mkdir()
    for name in ("logs", "nodes", "profiles"):
        (run / name).mkdir(parents=True)
    end = {"cause": "driver_exit", "exit_code": 0}
    (run / "run.json").write_text(json.dumps({"schema": 1, "job": "1", "nodes": ["n1"], "end": end}))
    return node, run


def dump(node: Path, name: str, seconds_ago: int, data: bytes = b"x" * HALF) -> None:
    path = node / "torch_fr" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    moment = path.stat().st_mtime - seconds_ago
    os.utime(path, (moment, moment))


def come_home(node: Path, run: Path, nodes: int = 1) -> dict[str, object]:
    """The end of a node: the last pass and its record."""
    syncer = Syncer(node, run, "n1", nodes=nodes)
    syncer.pass_()
    report = last_pass(syncer, 60.0)
    record_pass(node, report)
    syncer.close()
    assert report.complete, report
    return write_node_record(node, run, "n1", {"clean": report.complete, "job": "1"})


def home(run: Path) -> list[str]:
    folder = run / "nodes" / "n1" / "torch_fr"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_dumps_come_home(folders: tuple[Path, Path]) -> None:
    node, run = folders
    for name in ("7/fr_aa_rank_0", "8/fr_aa_rank_1", "8/.fr_aa_rank_1.8.1"):
        dump(node, name, 60)
    come_home(node, run)
    assert home(run) == ["7/fr_aa_rank_0", "8/fr_aa_rank_1"]
    assert not harvest(run).notes


def test_a_dump_that_torch_writes_again_comes_home_again(folders: tuple[Path, Path]) -> None:
    node, run = folders
    dump(node, "7/fr_aa_rank_0", 60, b"first")
    come_home(node, run)
    dump(node, "7/fr_aa_rank_0", 0, b"second")
    come_home(node, run)
    assert (run / "nodes/n1/torch_fr/7/fr_aa_rank_0").read_bytes() == b"second"


@pytest.mark.parametrize(("nodes", "kept"), [(1, 2), (2, 1)])
def test_the_oldest_that_fit_come_home_and_the_manifest_says_what_stayed(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, nodes: int, kept: int
) -> None:
    monkeypatch.setattr(routes, "TORCH_FR_MIB", 1)
    node, run = folders
    for rank, seconds_ago in enumerate((30, 60, 10)):
        dump(node, f"{rank}/fr_aa_rank_{rank}", seconds_ago)
    record = come_home(node, run, nodes)
    assert home(run) == ["0/fr_aa_rank_0", "1/fr_aa_rank_1"][2 - kept :]
    assert record["clean"] and record["cleared"]
    left = 3 - kept
    [note] = harvest(run).notes
    assert note.startswith(f"node n1: {left} dump{'s' * (left > 1)} of PyTorch's flight recorder")
