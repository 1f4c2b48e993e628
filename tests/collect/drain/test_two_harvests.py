"""Two harvests of one run folder at the same time."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from pathlib import Path

import pytest
from tests.collect.runfolder import NSYS_FRAME
from tests.waits import wait_until

from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.collect.drain import claims
from rlprof_ops.collect.drain.import_raw import recover_tree
from rlprof_ops.host.contained_dir import ContainedDir

NAME = "w_rank0_step3-4_n1_7"
RAW = f"nodes/n1/tmp/{NAME}.qdstrm"
REPORT = f"profiles/nsight/w/rank0/{NAME}.nsys-rep"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a raw capture, and an importer that takes a second."""
    (tmp_path / "frame").write_bytes(NSYS_FRAME)
    importer = tmp_path / "importer"
    importer.write_text(
        f'#!/bin/sh\necho $$ >> {tmp_path}/imports\nsleep 1\nwhile [ "$1" != -o ]; do shift; done\n'
        f'cp {tmp_path}/frame "$2"\n'
    )
    importer.chmod(0o755)
    monkeypatch.setattr(nsys_cli, "find_importer", lambda: str(importer))
    run = tmp_path / "run"
    (run / RAW).parent.mkdir(parents=True)
    (run / RAW).write_bytes(b"raw")
    return run


def recover(run: Path, seconds: float = 30) -> tuple[list[str], list[tuple[str, str]]]:
    return recover_tree(run, "nodes/n1/tmp", until=time.monotonic() + seconds, unclosed=[])


def imports(run: Path) -> int:
    path = run.parent / "imports"
    return len(path.read_text().split()) if path.exists() else 0


def in_process(run: Path, say: multiprocessing.queues.Queue[object]) -> None:
    say.put(recover(run))


def test_a_raw_capture_is_imported_once_and_nobody_fails(run: Path) -> None:
    forking = multiprocessing.get_context("fork")
    say = forking.Queue()
    both = [forking.Process(target=in_process, args=(run, say)) for _ in range(2)]
    for each in both:
        each.start()
    found = [say.get(timeout=60) for _ in both]
    for each in both:
        each.join()
    assert sorted(found) == [([], []), ([REPORT], [])]
    assert imports(run) == 1
    assert [path.name for path in (run / REPORT).parent.iterdir()] == [f"{NAME}.nsys-rep"]
    assert not list((run / ".recover").iterdir())


def test_a_claim_of_a_process_that_has_ended_is_taken_over(run: Path) -> None:
    forking = multiprocessing.get_context("fork")
    first = forking.Process(target=in_process, args=(run, forking.Queue()))
    first.start()
    wait_until(lambda: imports(run), 30)
    first.kill()
    first.join()
    assert list((run / ".recover").glob("claim-*"))
    assert recover(run) == ([REPORT], [])
    assert imports(run) == 2 and not list((run / ".recover").glob("claim-*"))


@pytest.mark.parametrize("left_s", [50, -50])
def test_a_claim_of_another_host_counts_until_its_time_is_over(run: Path, left_s: float) -> None:
    with ContainedDir(run) as tree:
        with claims.claimed(tree, RAW, 0, time.monotonic()):
            [claim] = (run / ".recover").iterdir()
        claim.write_text(json.dumps(["n77", 7, 7, time.time() + left_s]))
    expected = ([], [(RAW, "another harvest is importing it")]) if left_s > 0 else ([REPORT], [])
    assert recover(run, 1 if left_s > 0 else 30) == expected


def test_who_waits_goes_on_when_the_other_has_failed(run: Path) -> None:
    with ContainedDir(run) as tree, claims.claimed(tree, RAW, 0, time.monotonic() + 30) as is_mine:
        assert is_mine
        found: list[object] = []
        waiting = threading.Thread(target=lambda: found.append(recover(run)))
        waiting.start()
        time.sleep(1)
        assert imports(run) == 0
    waiting.join(30)
    assert found == [([REPORT], [])]
