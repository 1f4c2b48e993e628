"""Sync: what a pass brings over, what it leaves, and what it survives."""

import os
import socket
import time

import pytest

from rlprof_ops.collect.sync import append_logs
from rlprof_ops.collect.sync.__main__ import jitter_s, parse_interval
from rlprof_ops.collect.sync.sync_pass import Syncer
from rlprof_ops.errors import UsageError


@pytest.fixture
def place(tmp_path):
    class NodeContext:
        node = tmp_path / "node"
        run = tmp_path / "run"

        def put(self, relative, data=b"data"):
            path = self.node / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            return path

        def syncer(self, **more):
            return Syncer(self.node, self.run, "n1", **more)

        def there(self):
            files = (path for path in self.run.rglob("*") if path.is_file())
            return {str(path.relative_to(self.run)): path.read_bytes() for path in files}

    place = NodeContext()
    place.node.mkdir()
    place.run.mkdir()
    return place


REPORT = "profiles/nsight/policy_worker/rank0/policy_worker_rank0_step3-4_n1_17.nsys-rep"


def test_each_folder_goes_to_its_place(place):
    place.put(REPORT, b"report")
    place.put("events/w.jsonl", b'{"event":"registered"}\n')
    place.put("events/w.step", b"\5\0\0\0\0\0\0\0")
    place.put("logs/raylet.log", b"log\n")
    place.put("ray/session_2026-11-21_17/logs/worker.out", b"out\n")
    place.put("ray/prom.json", b"not for us")
    syncer = place.syncer()
    syncer.pass_()
    assert "nodes/n1/events/w.step" not in place.there()  # until then the head tells the step
    report = syncer.pass_(last=True)
    assert report.complete, report
    assert place.there() == {
        REPORT: b"report",
        "nodes/n1/events/w.jsonl": b'{"event":"registered"}\n',
        "nodes/n1/events/w.step": b"\5\0\0\0\0\0\0\0",
        "logs/n1/raylet.log": b"log\n",
        "ray/n1/session_2026-11-21_17/logs/worker.out": b"out\n",
    }


def test_a_second_pass_copies_nothing(place):
    place.put(REPORT)
    place.put("logs/a.log")
    syncer = place.syncer()
    syncer.pass_()
    report = syncer.pass_()
    assert (report.copied, report.copied_bytes) == (0, 0)


def test_the_copy_keeps_the_time_of_the_source(place):
    source = place.put(REPORT)
    os.utime(source, ns=(10**18, 10**18 + 7))
    place.syncer().pass_()
    assert (place.run / REPORT).stat().st_mtime_ns == 10**18 + 7


def test_a_log_is_continued_not_copied_again(place):
    log = place.put("logs/a.log", b"x" * 100_000)
    syncer = place.syncer()
    syncer.pass_()
    with open(log, "ab") as stream:
        stream.write(b"tail")
    assert syncer.pass_().copied_bytes == 4
    assert place.there()["logs/n1/a.log"] == log.read_bytes()


def test_a_restarted_sync_continues_a_log(place):
    log = place.put("logs/a.log", b"x" * 100_000)
    place.syncer().pass_()
    with open(log, "ab") as stream:
        stream.write(b"tail")
    assert place.syncer().pass_().copied_bytes == 4
    assert place.there()["logs/n1/a.log"] == log.read_bytes()


def test_a_restarted_sync_does_not_copy_reports_again(place):
    place.put(REPORT)
    place.syncer().pass_()
    assert place.syncer().pass_().copied == 0


def test_a_lost_journal_does_not_copy_or_double_reports(place):
    place.put(REPORT)
    place.syncer().pass_()
    (place.node / "sync/state.jsonl").unlink()
    assert place.syncer().pass_().copied == 0
    assert list(place.there()) == [REPORT]


def test_events_arrive_in_whole_lines_until_the_last_pass(place):
    place.put("events/w.jsonl", b'{"a":1}\n{"b":')
    syncer = place.syncer()
    syncer.pass_()
    assert place.there()["nodes/n1/events/w.jsonl"] == b'{"a":1}\n'
    syncer.pass_(last=True)
    assert place.there()["nodes/n1/events/w.jsonl"] == b'{"a":1}\n{"b":'


def test_a_truncated_log_keeps_its_earlier_content_aside(place):
    log = place.put("logs/a.log", b"first life, long\n")
    syncer = place.syncer()
    syncer.pass_()
    log.write_bytes(b"second\n")
    syncer.pass_()
    there = place.there()
    assert there["logs/n1/a.log"] == b"second\n"
    assert there["logs/n1/a.log.before-1"] == b"first life, long\n"


def test_a_log_rewritten_often_loses_nothing(place):
    log = place.put("logs/a.log", b"life 0\n")
    syncer = place.syncer()
    for number in range(9):
        log.write_bytes(b"x" * number + b"life %d\n" % number)
        syncer.pass_()
    there = place.there()
    kept = b"".join(data for path, data in there.items() if path.startswith("logs/n1/a.log"))
    assert [number for number in range(9) if b"life %d\n" % number not in kept] == []
    assert len(there) == 6


def test_a_log_written_anew_past_its_old_end_is_no_continuation(place):
    """The copy is open and is not looked at: the source alone tells."""
    log = place.put("logs/a.log", b"first life\n")
    syncer = place.syncer()
    syncer.pass_()
    log.write_bytes(b"second life, longer\n")
    syncer.pass_()
    assert place.there()["logs/n1/a.log"] == b"second life, longer\n"
    assert place.there()["logs/n1/a.log.before-1"] == b"first life\n"


def test_a_copy_that_somebody_removed_is_made_again_at_the_end(place):
    log = place.put("logs/a.log", b"one\n")
    syncer = place.syncer()
    syncer.pass_()
    (place.run / "logs/n1/a.log").unlink()
    log.write_bytes(b"one\ntwo\n")
    syncer.pass_()
    assert syncer.pass_(last=True).complete
    assert place.there()["logs/n1/a.log"] == b"one\ntwo\n"


def test_more_logs_than_may_stay_open_are_all_continued(place, monkeypatch):
    monkeypatch.setattr(append_logs, "_MOST_OPEN", 3)
    syncer = place.syncer(parallel=4)
    for line in (b"one\n", b"two\n", b"three\n"):
        for number in range(12):
            with open(
                place.put(f"logs/{number}.log", b"")
                if line == b"one\n"
                else place.node / f"logs/{number}.log",
                "ab",
            ) as log:
                log.write(line)
        assert syncer.pass_().complete
    assert set(place.there().values()) == {b"one\ntwo\nthree\n"} and len(place.there()) == 12
    open_copies = [
        os.readlink(fd.path)
        for fd in os.scandir("/proc/self/fd")
        if os.path.islink(fd.path) and os.path.exists(fd.path)
    ]
    assert sum(str(place.run) in name for name in open_copies) == 3


def test_a_rotated_log_is_there_once_under_each_name(place):
    log = place.put("logs/a.log", b"old\n")
    syncer = place.syncer()
    syncer.pass_()
    log.rename(place.node / "logs/a.log.1")
    place.put("logs/a.log", b"new\n")
    syncer.pass_()
    assert place.there() == {"logs/n1/a.log": b"new\n", "logs/n1/a.log.1": b"old\n"}


def test_a_report_in_rays_own_folder_waits_until_it_is_quiet_and_closed(place):
    path = place.put("ray/session_1_2/logs/nsight/worker_process_5.nsys-rep", b"half")
    syncer = place.syncer()
    assert syncer.pass_().waiting == 1
    old = time.time() - 60
    os.utime(path, (old, old))
    assert syncer.pass_().waiting == 1  # its time moved: seen once as it is now
    with open(path, "ab"):
        assert syncer.pass_().waiting == 1  # somebody has it open
    assert syncer.pass_().copied == 1
    assert list(place.there()) == ["ray/n1/session_1_2/logs/nsight/worker_process_5.nsys-rep"]


def test_raw_captures_travel_only_in_the_last_pass(place):
    place.put("tmp/nsys-report-1.qdstrm", b"raw")
    place.put("tmp/other", b"not ours")
    syncer = place.syncer()
    syncer.pass_()
    assert place.there() == {}
    assert syncer.pass_(last=True).complete
    assert place.there() == {"nodes/n1/tmp/nsys-report-1.qdstrm": b"raw"}


def test_links_sockets_fifos_and_temporary_names_stay_on_the_node(place, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"secret")
    place.put(REPORT)
    folder = (place.node / REPORT).parent
    os.symlink(secret, folder / "link.nsys-rep")
    os.symlink("nowhere", folder / "dangling.nsys-rep")
    os.symlink(outside, folder / "linked_folder")
    os.symlink(outside, place.node / "logs")
    os.mkfifo(folder / "fifo.nsys-rep")
    place.put("profiles/nsight/.hidden.tmp", b"half")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(folder)
        try:
            server.bind("socket.nsys-rep")
        finally:
            os.chdir(here)
        report = place.syncer().pass_(last=True)
    assert list(place.there()) == [REPORT]
    assert report.complete, report


@pytest.mark.parametrize(
    "name",
    [b"new\nline", b"quote'\"", b"-dash", b"\xff\xfe", b"a b", b"$(touch x)", "ü".encode(), b"x" * 250],
)
def test_strange_names_arrive_as_they_are(place, name):
    folder = os.fsencode(place.node) + b"/profiles/torch"
    os.makedirs(folder)
    with open(folder + b"/" + name, "wb") as stream:
        stream.write(b"1")
    assert place.syncer().pass_().complete
    assert os.listdir(os.fsencode(place.run) + b"/profiles/torch") == [name]
    again = place.syncer().pass_()
    assert again.copied == 0


def test_empty_and_sparse_files_arrive(place):
    place.put("profiles/a", b"")
    path = place.put("profiles/b", b"")
    with open(path, "r+b") as stream:
        stream.truncate(50 << 20)
        stream.seek(30 << 20)
        stream.write(b"middle")
    assert place.syncer().pass_().complete
    copy = place.run / "profiles/b"
    assert copy.read_bytes() == path.read_bytes()
    assert copy.stat().st_blocks * 512 < 5 << 20


def test_two_nodes_with_the_same_name_keep_both_files(place, tmp_path):
    place.put("profiles/torch/trace.json", b"one")
    place.syncer().pass_()
    other = tmp_path / "other"
    (other / "profiles/torch").mkdir(parents=True)
    (other / "profiles/torch/trace.json").write_bytes(b"two")
    syncer = Syncer(other, place.run, "n2")
    syncer.pass_()
    assert place.there() == {"profiles/torch/trace.json": b"one", "profiles/torch/n2~trace.json": b"two"}
    assert syncer.pass_(last=True).copied == 0


def test_a_link_in_the_run_folder_is_not_written_through(place, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    os.symlink(outside, place.run / "profiles")
    place.put(REPORT)
    report = place.syncer().pass_()
    assert not report.complete
    assert list(outside.iterdir()) == []


def test_a_missing_run_folder_is_reported_and_not_made(place):
    place.run.rmdir()
    place.put(REPORT)
    syncer = place.syncer()
    report = syncer.pass_()
    assert report.target_error and not place.run.exists()
    place.run.mkdir()
    assert syncer.pass_().complete
    assert list(place.there()) == [REPORT]


def test_another_run_folder_in_the_same_place_gets_everything_once_it_is_said_to_be_the_right_one(place):
    place.put(REPORT)
    place.put("logs/a.log")
    syncer = place.syncer()
    syncer.pass_()
    place.run.rename(place.run.with_name("gone"))
    place.run.mkdir()
    assert "has been replaced" in syncer.pass_().target_error
    assert place.there() == {}
    (place.node / "run_folder").unlink()  # it is meant
    syncer.pass_()
    assert sorted(place.there()) == sorted([REPORT, "logs/n1/a.log"])


def test_the_last_pass_puts_back_what_vanished_from_the_run_folder(place):
    place.put(REPORT)
    place.put("logs/a.log")
    syncer = place.syncer()
    syncer.pass_()
    (place.run / REPORT).unlink()
    (place.run / "logs/n1/a.log").unlink()
    assert syncer.pass_(last=True).complete
    assert sorted(place.there()) == sorted([REPORT, "logs/n1/a.log"])


def test_temporary_files_of_a_killed_sync_are_swept(place):
    (place.run / ".sync/n1").mkdir(parents=True)
    (place.run / ".sync/n1/17-0").write_bytes(b"half")
    place.syncer().pass_()
    assert place.there() == {}


def test_a_torn_journal_line_costs_nothing(place):
    place.put(REPORT)
    place.syncer().pass_()
    with open(place.node / "sync/state.jsonl", "ab") as stream:
        stream.write(b'["profiles/x", "pro')
    syncer = place.syncer()
    place.put("profiles/y")
    assert syncer.pass_().copied == 1
    assert place.syncer().pass_().copied == 0


def test_a_deadline_that_is_over_names_what_stayed_behind(place):
    place.put(REPORT)
    report = place.syncer().pass_(last=True, deadline=time.monotonic() - 1)
    assert report.failed == [(REPORT, "the deadline of the last pass came first")]


@pytest.mark.parametrize("text", ["abc", "-1", "1.5", "", " 3", "٣", "1e3", "99999999"])
def test_a_wrong_interval_is_refused_with_its_value(text):
    with pytest.raises(UsageError, match="RAY_LOG_SYNC_FREQUENCY is "):
        parse_interval(text)


def test_nodes_start_at_different_moments():
    moments = {jitter_s(f"node{number}", 30) for number in range(64)}
    assert len(moments) > 40 and all(0 <= moment < 30 for moment in moments)
