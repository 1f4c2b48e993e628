"""Small finished files sent together: each by itself in the end, whatever becomes of its neighbours."""

from __future__ import annotations

import os

import pytest

from rlprof_ops.collect.sync import send_batch
from rlprof_ops.collect.sync.routes import Item, Kind
from rlprof_ops.collect.sync.sync_pass import Syncer


@pytest.fixture
def folders(tmp_path):
    node, run = tmp_path / "node", tmp_path / "run"
    (node / "profiles/torch").mkdir(parents=True)
    run.mkdir()
    for number in range(100):
        (node / f"profiles/torch/{number:03}").write_bytes(b"%d" % number * 10)
    return node, run


def there(run):
    return {path.name: path.read_bytes() for path in (run / "profiles").rglob("*") if path.is_file()}


def item(kind, size, name="a"):
    return Item(name, name, kind, os.stat_result((0o100600, 1, 1, 1, 0, 0, size, 0, 0, 0)))


def test_all_arrive_and_nothing_is_on_its_way_any_more(folders):
    node, run = folders
    report = Syncer(node, run, "n1").pass_()
    assert (report.copied, report.failed) == (100, [])
    assert there(run) == {path.name: path.read_bytes() for path in (node / "profiles/torch").iterdir()}
    assert not [path for path in (run / ".sync").rglob("*") if path.is_file()]


def test_no_name_is_given_before_the_flush(folders, monkeypatch):
    node, run = folders
    flushed, fsync, link = set(), os.fsync, os.link

    def noting_fsync(fd):
        flushed.add(os.fstat(fd).st_ino)
        fsync(fd)

    def checking_link(source, target, **more):
        assert os.stat(source, dir_fd=more.get("src_dir_fd"), follow_symlinks=False).st_ino in flushed
        link(source, target, **more)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "link", checking_link)
    assert Syncer(node, run, "n1").pass_().copied == 100
    assert len(flushed) >= 100


def test_a_flush_that_fails_costs_that_file_alone(folders, monkeypatch):
    node, run = folders
    fsync, failing = os.fsync, iter([False] * 9 + [True])

    def once(fd):
        if next(failing, False):
            raise OSError(5, "Input/output error")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", once)
    syncer = Syncer(node, run, "n1", parallel=1)
    report = syncer.pass_()
    [(path, reason)] = report.failed
    assert (report.copied, reason) == (99, "Input/output error")
    assert len(there(run)) == 99 and path.rsplit("/", 1)[-1] not in there(run)
    assert not [path for path in (run / ".sync").rglob("*") if path.is_file()]
    assert syncer.pass_().copied == 1 and len(there(run)) == 100


def test_a_source_that_changes_on_its_way_is_left_for_the_next_pass(folders, monkeypatch):
    node, run = folders
    fsync, changed = os.fsync, []

    def changing(fd):
        if not changed:
            changed.append((node / "profiles/torch/000").write_bytes(b"something else"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", changing)
    syncer = Syncer(node, run, "n1", parallel=1)
    [(path, reason)] = syncer.pass_().failed
    assert path == "profiles/torch/000" and "changed" in reason
    assert syncer.pass_().copied == 1 and there(run)["000"] == b"something else"


def test_small_finished_files_go_together_and_the_order_stays():
    small = [item(Kind.FINISHED, 1, str(number)) for number in range(70)]
    log, large = item(Kind.GROWING, 1, "log"), item(Kind.FINISHED, send_batch.SMALL + 1, "large")
    groups = list(send_batch.grouped([*small, large, small[0], log, small[1], small[2]]))
    assert [len(group) for group in groups] == [32, 32, 6, 1, 1, 1, 2]
    assert [each for group in groups for each in group] == [*small, large, small[0], log, small[1], small[2]]
