"""A harvest in the time that it is given: its manifest is there before whoever runs it ends it, and says what
there was no time for.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.collect.runfolder import RunFolder

from rlprof_ops.collect.harvest.run_harvest import harvest
from rlprof_ops.collect.harvest.verify import Checker

REQUEST = {"captures": [{"backend": "nsight", "workers": ["w"], "steps": "3"}]}
WITHIN_S = 12
SLOW = "exec sleep 300"


def stand_in(folder: Path, nsys: str, importer: str) -> Path:
    for name, does in (("target-linux-x64/nsys", nsys), ("host-linux-x64/QdstrmImporter", importer)):
        program = folder / name
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    return folder / "target-linux-x64/nsys"


@pytest.mark.parametrize("slow", ["looks", "importer"])
def test_the_manifest_is_written_before_the_harvest_is_ended(tmp_path, monkeypatch, slow):
    job = RunFolder(tmp_path / "4711-logs", REQUEST, nodes=("n1",))
    for rank in range(20):
        job.worker("w", rank, pid=100 + rank, world_size=20, last_step=5)
        job.report("nsight", "w", rank, 3, 4, pid=100 + rank)
    if slow == "importer":
        job.file("nodes/n1/tmp/x.qdstrm", b"raw")
    job.write()
    nsys = stand_in(tmp_path / "nsys", *(("sleep 1; exit 1", SLOW) if slow == "looks" else ("exit 1", SLOW)))
    monkeypatch.setenv("RLPROF_NSYS", str(nsys))
    until = int(time.time() + WITHIN_S)

    words = ("-m", "rlprof_ops", "harvest", "--until", str(until), str(job.root))
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=60)

    assert time.time() < until, done.stderr
    notes = json.loads((job.root / "manifest.json").read_text())["notes"]
    if slow == "looks":
        assert "could not be looked into, only their frames are checked" in " ".join(notes)
        assert "no time was left" in " ".join(notes)
    else:
        assert "raw capture 'nodes/n1/tmp/x.qdstrm' could not be recovered" in " ".join(notes)


FULL = "Failed to close database connection: [tag_message*] = database or disk is full"


def asked_for_export(does: str) -> str:
    return f'[ "$1" = export ] || exit 0\nwhile [ "$1" != -o ]; do shift; done\n{does}'


@pytest.mark.parametrize(
    ("nsys", "reason"),
    [
        (SLOW, "nsys did not end within"),
        (f"echo '{FULL}'; exit 1", "database or disk is full"),
        (f"echo '{FULL}'; touch \"$2\"", "database or disk is full"),  # as nsys 2023.4 does it
        ("kill -9 $$", "nsys ended with exit code -9"),
        ("", "no export can be made here: No such file or directory"),
    ],
    ids=["slow", "full", "full and 0", "killed", "no scratch"],
)
def test_what_this_machine_cannot_look_into_is_not_called_truncated(tmp_path, monkeypatch, nsys, reason):
    job = RunFolder(tmp_path / "4711-logs", REQUEST, nodes=("n1",))
    job.worker("w", 0, last_step=5)
    job.report("nsight", "w", 0, 3, 4)
    job.write()
    monkeypatch.setenv("RLPROF_NSYS", str(stand_in(tmp_path / "nsys", asked_for_export(nsys), "exit 1")))
    with monkeypatch.context() as here:
        if not nsys:
            here.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
        manifest = harvest(job.root, within_s=4)
    assert [capture.state for capture in manifest.captures] == ["ok"]
    [note] = [note for note in manifest.notes if "looked into" in note]
    assert note.startswith("1 of 1 report could not be looked into") and reason in note

    bad = stand_in(tmp_path / "other", asked_for_export("echo bad report; exit 1"), "exit 1")
    monkeypatch.setenv("RLPROF_NSYS", str(bad))
    [capture] = harvest(job.root).captures
    assert (capture.state, capture.reason) == (
        "truncated",
        "nsys cannot read it: nsys ended with exit code 1: bad report",
    ), "it is looked into again"


def test_storage_that_fails_for_a_moment_is_asked_again(tmp_path, monkeypatch):
    job = RunFolder(tmp_path / "4711-logs", REQUEST, nodes=("n1",))
    job.worker("w", 0, last_step=5)
    job.report("nsight", "w", 0, 3, 4)
    job.write()

    def fails(self: Checker, path: str) -> str:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as now:
        now.setattr(Checker, "_digest", fails)
        [capture] = harvest(job.root, content_budget_s=0).captures
    assert (capture.state, capture.reason) == ("truncated", "cannot be read: Input/output error")
    assert [each.state for each in harvest(job.root, content_budget_s=0).captures] == ["ok"]
