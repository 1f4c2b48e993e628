"""Sync against storage that is full, read-only, gone or slow, and sources that change under its hands."""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tests.small_disk import small_disk

from rlprof_ops.collect.drain.node_record import build_node_record
from rlprof_ops.collect.sync import append_logs, send_file
from rlprof_ops.collect.sync.copy_bytes import Limiter
from rlprof_ops.collect.sync.evict import make_room
from rlprof_ops.collect.sync.sent_log import SentLog
from rlprof_ops.collect.sync.sync_pass import Syncer


@pytest.fixture
def node(tmp_path):
    (tmp_path / "node/profiles/nsight").mkdir(parents=True)
    (tmp_path / "node/logs").mkdir()
    return tmp_path / "node"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def small(tmp_path):
    """A run folder on a file system of its own, 4 MiB large."""
    with small_disk(tmp_path / "small", "4m") as folder:
        yield folder


def report(node, name, size):
    path = node / "profiles/nsight" / name
    path.write_bytes(os.urandom(size))
    return path


def arrived(run):
    folder = run / "profiles/nsight"
    return {path.name: path.stat().st_size for path in folder.iterdir()} if folder.is_dir() else {}


def test_a_full_target_takes_what_fits_and_the_rest_when_there_is_room(node, small):
    (small / "ballast").write_bytes(bytes(2 << 20))
    report(node, "small", 1000)
    report(node, "large", 3 << 20)
    syncer = Syncer(node, small, "n1", parallel=1)  # else the small one may meet what the large one fills
    first = syncer.pass_()
    assert first.failed == [("profiles/nsight/large", "No space left on device")]
    assert arrived(small) == {"small": 1000}
    assert not any(path.is_file() for path in (small / ".sync").rglob("*"))
    (small / "ballast").unlink()
    assert syncer.pass_().complete
    assert arrived(small) == {"small": 1000, "large": 3 << 20}


def test_a_log_whose_last_write_came_half_way_keeps_its_name_and_is_sent_once(node, small):
    """Else a full storage would need room for all of it again, and the harvest would find no events."""
    events = node / "events/w_rank0_n1_7.jsonl"
    events.parent.mkdir()
    line = b'{"event": "opened"}' + b" " * 180 + b"\n"
    events.write_bytes(line * 5000)
    syncer = Syncer(node, small, "n1")
    assert syncer.pass_().complete
    free = os.statvfs(small)
    (small / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize - (100 << 10)))
    with open(events, "ab") as log:
        log.write(line * 5000)
    for _ in range(3):
        assert [path for path, _ in syncer.pass_().failed] == ["events/w_rank0_n1_7.jsonl"]
        assert os.listdir(small / "nodes/n1/events") == [events.name]
    (small / "ballast").write_bytes(bytes(1))
    assert syncer.pass_(last=True).complete
    assert os.listdir(small / "nodes/n1/events") == [events.name]
    assert (small / "nodes/n1/events" / events.name).read_bytes() == events.read_bytes()


def test_a_log_that_met_a_full_target_goes_on_without_a_gap(node, small):
    log = node / "logs/a.log"
    log.write_bytes(b"a line of a log\n" * (1 << 16))
    syncer = Syncer(node, small, "n1")
    assert syncer.pass_().complete
    (small / "ballast").write_bytes(bytes(5 << 19))
    with open(log, "ab") as stream:
        stream.write(b"a later line\n\n\n\n" * (1 << 16))
    assert not syncer.pass_().complete
    (small / "ballast").unlink()
    assert syncer.pass_().complete
    assert (small / "logs/n1/a.log").read_bytes() == log.read_bytes()


def test_a_read_only_target_ends_the_pass_at_once_and_is_used_again_later(node, small):
    for number in range(50):
        report(node, f"{number}", 10)
    syncer = Syncer(node, small, "n1")
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    failed = syncer.pass_()
    assert failed.target_error == f"{small}: Read-only file system"
    assert len(failed.failed) == 50
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
    assert syncer.pass_().complete
    assert len(arrived(small)) == 50


def test_a_target_that_was_unmounted_is_not_written_below_its_mount_point(node, small):
    report(node, "a", 10)
    syncer = Syncer(node, small / "4711-logs", "n1")
    (small / "4711-logs").mkdir()
    assert syncer.pass_().complete
    subprocess.run(["umount", str(small)], check=True)
    report(node, "b", 10)
    assert syncer.pass_().target_error
    assert list(small.iterdir()) == []


class Changing:
    """Stands in for what reads the source, and does something to the source at that moment."""

    def __init__(self, monkeypatch, change, module=send_file, name="copy"):
        self.real, self.change, self.done = getattr(module, name), change, False
        monkeypatch.setattr(module, name, self)

    def __call__(self, *arguments, **more):
        if not self.done:
            self.done = True
            self.change()
        return self.real(*arguments, **more)


@pytest.mark.parametrize("new", [b"short", b"much longer than before", b"same size"])
def test_a_report_that_changes_while_it_is_copied_never_arrives_half(node, run, monkeypatch, new):
    path = report(node, "a", 9)
    Changing(monkeypatch, lambda: path.write_bytes(new))
    syncer = Syncer(node, run, "n1")
    assert syncer.pass_().failed == [
        ("profiles/nsight/a", "it changed while it was copied; the next pass tries again")
    ]
    assert arrived(run) == {}
    assert syncer.pass_().complete
    assert (run / "profiles/nsight/a").read_bytes() == new


def test_a_report_replaced_while_it_is_copied_arrives_whole_in_both_versions(node, run, monkeypatch):
    path = report(node, "a", 9)
    old = path.read_bytes()

    def swap():
        (node / "new").write_bytes(b"new version")
        os.replace(node / "new", path)

    Changing(monkeypatch, swap)
    syncer = Syncer(node, run, "n1")
    syncer.pass_()
    assert (run / "profiles/nsight/a").read_bytes() == old
    syncer.pass_(last=True)
    assert (run / "profiles/nsight/a").read_bytes() == old  # a finished report is never replaced
    assert (run / "profiles/nsight/n1~a").read_bytes() == b"new version"


def test_a_log_truncated_while_it_is_copied_loses_nothing_that_was_sent(node, run, monkeypatch):
    log = node / "logs/a.log"
    log.write_bytes(b"first\n" * 1000)
    syncer = Syncer(node, run, "n1")
    syncer.pass_()
    with open(log, "ab") as stream:
        stream.write(b"second\n" * 1000)
    Changing(monkeypatch, lambda: os.truncate(log, 0), append_logs, "whole_lines")
    syncer.pass_()
    log.write_bytes(b"third\n")
    assert syncer.pass_(last=True).complete
    texts = [path.read_bytes() for path in (run / "logs/n1").iterdir()]
    assert b"third\n" in texts and any(text.startswith(b"first\n" * 1000) for text in texts)


def test_thousands_of_files_arrive_and_an_idle_pass_touches_none(node, run):
    for number in range(3_000):
        folder = node / f"profiles/torch/w/rank{number % 50}"
        if number < 50:
            folder.mkdir(parents=True)
        (folder / f"{number}.json").write_bytes(b"%d" % number)
    syncer = Syncer(node, run, "n1")
    assert syncer.pass_().copied == 3_000
    time.sleep(2.1)  # folders that changed a moment ago are read once more
    syncer.pass_()
    idle = syncer.pass_()
    assert (idle.copied, idle.scanned) == (0, 0)
    again = syncer.pass_(last=True)
    assert (again.copied, again.unchanged) == (0, 3_000)


def test_the_bandwidth_limit_holds_over_all_threads():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    limiter = Limiter(1000, clock=lambda: now[0], sleep=sleep)
    for _ in range(10):
        limiter.take(500)
    assert now[0] == pytest.approx(4.5)
    assert max(slept) <= 0.2  # it looks up often enough to be stopped


def test_reports_leave_a_full_node_only_when_their_copy_matches(node, run):
    paths = [report(node, name, 1000) for name in ("a", "b", "c", "d")]
    for age, path in enumerate(paths):
        os.utime(path, (1000 + age, 1000 + age))
    syncer = Syncer(node, run, "n1")
    syncer.pass_()
    (run / "profiles/nsight/a").write_bytes(b"x" * 1000)  # damaged on the storage
    (run / "profiles/nsight/b").unlink()
    free = iter([0, 0, 0, 0, 10**12])
    removed = list(make_room(node, run, syncer.journal, 1, free_bytes=lambda folder: next(free)))
    assert removed == ["profiles/nsight/c"]
    assert [path.exists() for path in paths] == [True, True, False, True]
    assert syncer.pass_(last=True).complete
    assert (run / "profiles/nsight/c").stat().st_size == 1000


def test_nothing_is_removed_while_there_is_room(node, run):
    report(node, "a", 10)
    syncer = Syncer(node, run, "n1")
    syncer.pass_()
    assert list(make_room(node, run, syncer.journal, 10, free_bytes=lambda folder: 10)) == []


def test_a_large_report_has_the_digest_of_its_bytes_and_one_that_changes_does_not_arrive(
    node, run, monkeypatch
):
    path = report(node, "large", (16 << 20) + 5)
    syncer = Syncer(node, run, "n1")
    real = send_file.copy_in_kernel

    def changing(source, target, **more):
        size = real(source, target, **more)
        with open(path, "ab") as stream:
            stream.write(b"more")
        return size

    monkeypatch.setattr(send_file, "copy_in_kernel", changing)
    assert not syncer.pass_().complete and arrived(run) == {}
    monkeypatch.setattr(send_file, "copy_in_kernel", real)
    assert syncer.pass_().complete
    assert (
        syncer.journal.sent["profiles/nsight/large"].sha256
        == hashlib.sha256((run / "profiles/nsight/large").read_bytes()).hexdigest()
    )
    (node / "sync/state.jsonl").unlink()
    assert Syncer(node, run, "n1").pass_().copied == 0  # the same file is there already


def test_readers_never_see_a_half_written_file(node, run):
    """A reader looks at the run folder all the time while large files arrive."""
    sizes = {f"{number}": 3_000_000 + number for number in range(12)}
    for name, size in sizes.items():
        report(node, name, size)
    half, ended = [], threading.Event()

    def look():
        while not ended.is_set():
            with contextlib.suppress(FileNotFoundError):
                half.extend((name, size) for name, size in arrived(run).items() if sizes[name] != size)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        Syncer(node, run, "n1").pass_()
    finally:
        ended.set()
        reader.join()
    assert half == [] and arrived(run) == sizes


def test_an_unreadable_source_is_named_and_the_rest_arrives(node, run, monkeypatch):
    report(node, "a", 10)
    report(node, "b", 10)
    real = os.open

    def failing(path, flags, mode=0o777, *, dir_fd=None):
        if path == "a" and not flags & os.O_WRONLY:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", failing)
    result = Syncer(node, run, "n1").pass_()
    assert result.failed == [("profiles/nsight/a", "Permission denied")]
    assert arrived(run) == {"b": 10}


def test_a_node_folder_that_is_gone_is_an_error_not_a_crash(node, run):
    report(node, "a", 10)
    syncer = Syncer(node, run, "n1")
    shutil.rmtree(node)
    assert not syncer.pass_().complete
    assert not Path(node).exists()


@pytest.mark.parametrize("sizes", [[1000, 2000], [17 << 20]], ids=["small", "large"])
def test_a_copy_that_the_storage_does_not_hold_is_not_taken_for_one(node, run, monkeypatch, sizes):
    """A bit turns over on the way to the disk: the size is right and the flush says nothing."""
    for number, size in enumerate(sizes):
        report(node, f"r{number}.nsys-rep", size)
    fsync = os.fsync

    def turning_a_bit(fd):
        fsync(fd)
        if "/.sync/" in os.readlink(f"/proc/self/fd/{fd}"):
            byte = os.pread(fd, 1, 500)[0]
            os.pwrite(fd, bytes([byte ^ 4]), 500)

    syncer = Syncer(node, run, "n1")
    monkeypatch.setattr(os, "fsync", turning_a_bit)
    broken = syncer.pass_(last=True)
    assert [reason for _, reason in broken.failed] == ["what the storage holds is not what was sent"] * len(
        sizes
    )
    assert (arrived(run), syncer.journal.sent) == ({}, {})
    monkeypatch.setattr(os, "fsync", fsync)
    assert syncer.pass_(last=True).complete
    assert len(arrived(run)) == len(sizes)


@pytest.mark.parametrize("sizes", [[1000, 2000], [17 << 20]], ids=["small", "large"])
def test_a_report_counts_as_sent_when_its_name_is_on_the_disk(node, run, monkeypatch, sizes):
    for number, size in enumerate(sizes):
        report(node, f"r{number}.nsys-rep", size)
    order: list[str] = []
    fsync, link, add = os.fsync, os.link, SentLog.add

    def noting(fd):
        order.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(os, "link", lambda *a, **more: (order.append("name"), link(*a, **more))[1])
    monkeypatch.setattr(SentLog, "add", lambda *a: (order.append("sent"), add(*a))[1])
    assert Syncer(node, run, "n1").pass_().copied == len(sizes)
    count = len(sizes)
    assert order == ["file"] * count + ["name"] * count + ["folder"] + ["sent"] * count


def test_a_copy_for_whose_reading_back_there_is_no_time_serves_and_its_source_stays(node, run, monkeypatch):
    source = report(node, "r.nsys-rep", 3 << 20)
    over: list[bool] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (fsync(fd), over.append(True))[0])
    syncer = Syncer(node, run, "n1", stop=lambda: bool(over))
    assert not syncer.pass_(last=True).complete
    assert arrived(run) == {"r.nsys-rep": 3 << 20} and source.exists()
    assert build_node_record(node, "n1", {"clean": True})["cleared"] is False
    over.clear()
    monkeypatch.setattr(os, "fsync", fsync)
    assert syncer.pass_(last=True).complete and len(arrived(run)) == 1
    assert build_node_record(node, "n1", {"clean": True})["cleared"] is True


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP])
def test_storage_without_hard_links_takes_reports(node, run, monkeypatch, number):
    report(node, "r.nsys-rep", 1000)

    def refused(*a, **more):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    assert Syncer(node, run, "n1").pass_().complete
    assert arrived(run) == {"r.nsys-rep": 1000}
