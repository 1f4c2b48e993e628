"""Secrets are taken out of nsys reports, and the reports stay readable."""

import contextlib
import os
import sqlite3
import subprocess
import time
from random import Random

import pytest
from tests.needs import need
from tests.real_nsys import profile
from tests.waits import wait_until

from rlprof_ops import backends
from rlprof_ops.backends.nsight.nsys_process import why_unreadable
from rlprof_ops.collect.drain.nsys_contents import look
from rlprof_ops.collect.sync.sync_pass import Syncer
from rlprof_ops.redact.binary_files import (
    _one_by_one,
    _WordFinder,
    mask,
    maskable,
    places,
    secrets_of_processes,
)
from rlprof_ops.window.report_file import mirror

SECRET = "hf_abcdefgh12345"


def masked(tmp_path, data, values=()):
    path = tmp_path / "report"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDWR)
    try:
        mask(fd, places(fd, values))
    finally:
        os.close(fd)
    return path.read_bytes()


MANY = [f"{number:04}-secret-{number * 7919:x}".encode() for number in range(40)]


@pytest.mark.parametrize("more", [[], MANY], ids=["one by one", "in one pass"])
def test_values_are_overwritten_wherever_they_stand_and_nothing_else(tmp_path, more):
    data = b"HF_TOKEN=" + SECRET.encode() + b"\0" + bytes(9 << 20) + SECRET.encode() + b"end"
    changed = masked(tmp_path, data, [SECRET.encode(), SECRET[:8].encode(), *more])
    assert changed == data.replace(SECRET.encode(), b"*" * len(SECRET))


@pytest.mark.parametrize("more", [[], MANY], ids=["one by one", "in one pass"])
@pytest.mark.parametrize("before", range(8))
def test_a_value_across_two_blocks_is_found(tmp_path, more, before):
    data = bytes((8 << 20) - before) + SECRET.encode() + bytes(12 << 20)
    assert SECRET.encode() not in masked(tmp_path, data, [SECRET.encode(), *more])


def test_both_ways_find_the_same():
    need("numpy")
    random = Random(7)
    values = [random.randbytes(random.randint(8, 40)) for _ in range(30)]
    for _ in range(20):
        block = b"".join(
            random.choice([random.choice(values), random.randbytes(random.randint(0, 9))]) for _ in range(99)
        )
        assert set(_WordFinder(values).find(block)) == set(_one_by_one(block, values))


@pytest.mark.parametrize(
    "value",
    ["NVIDIA", "abc123", "/usr/lib/python3", "production", "some-plain-words", "12345678", "aaaaaaaaaaaa"],
)
def test_short_and_common_values_are_never_masked_in_a_binary(value):
    assert maskable([value, SECRET]) == {SECRET.encode()}


def test_the_only_copy_is_never_written_to(tmp_path, monkeypatch):
    """A masking that would make a report unreadable leaves it as it was, on the node."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("RLPROF_NSYS", "/nowhere/nsys")
    node, run = tmp_path / "node", tmp_path / "run"
    (node / "profiles/nsight").mkdir(parents=True)
    run.mkdir()
    report = node / "profiles/nsight/a.nsys-rep"
    whole = b"NVIDIA Tegra Profiler Report" + SECRET.encode() + b"[END]"
    report.write_bytes(whole)
    with monkeypatch.context() as patched:
        patched.setattr(type(backends.get("nsight")), "why_unreadable", lambda *_: "no")
        result = Syncer(node, run, "n1").pass_(last=True)
    assert not result.complete and "could not read it any more (no)" in result.failed[0][1]
    assert report.read_bytes() == whole and not list(run.rglob("*.nsys-rep"))
    assert [path.name for path in node.rglob("*.nsys-rep")] == ["a.nsys-rep"]
    assert Syncer(node, run, "n1").pass_(last=True).complete
    home = (run / "profiles/nsight/a.nsys-rep").read_bytes()
    assert home == whole.replace(SECRET.encode(), b"*" * len(SECRET)) == report.read_bytes()


def test_reports_of_another_backend_are_masked_where_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(type(backends.get("torch")), "masked", (".pt.trace.json",))
    node, run = tmp_path / "node", tmp_path / "run"
    report = node / "profiles/torch/a.pt.trace.json"
    report.parent.mkdir(parents=True)
    run.mkdir()
    report.write_text(f'{{"traceEvents": [{{"ph": "X", "ts": 1, "dur": 1, "name": "{SECRET}"}}]}}')
    assert Syncer(node, run, "n1").pass_(last=True).complete
    home = (run / "profiles/torch/a.pt.trace.json").read_text()
    assert SECRET not in home and "*" * len(SECRET) in home


@pytest.mark.parametrize("folder", ["profiles", "inplace"])
def test_an_export_of_a_report_leaves_the_node_without_secrets(tmp_path, monkeypatch, folder):
    """nsys writes one beside a report where `export: sqlite` or `stats` is asked for."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    node, run = tmp_path / "node", tmp_path / "run"
    export = node / folder / "nsight/trainer/a.sqlite"
    export.parent.mkdir(parents=True)
    run.mkdir()
    with contextlib.closing(sqlite3.connect(export)) as file:
        file.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (value TEXT)")
        file.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?)", [f"HF_TOKEN={SECRET} LANG=C"])
        file.commit()

    assert Syncer(node, run, "n1").pass_(last=True).complete

    home = run / "profiles/nsight/trainer/a.sqlite"
    with contextlib.closing(sqlite3.connect(home)) as file:
        rows = file.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV").fetchall()
    assert rows == [(f"HF_TOKEN={'*' * len(SECRET)} LANG=C",)]
    assert SECRET.encode() not in home.read_bytes()


def test_a_masked_export_that_is_damaged_is_told_of(tmp_path):
    whole, damaged = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    with contextlib.closing(sqlite3.connect(whole)) as file:
        file.execute("CREATE TABLE t (value TEXT)")
        file.commit()
    damaged.write_bytes(b"*" * 16 + whole.read_bytes()[16:])

    assert why_unreadable(whole, whole) == ""
    assert why_unreadable(whole, damaged) == "file is not a database"


def test_logs_leave_the_node_without_secrets(tmp_path, monkeypatch):
    """runtime_env_agent.log holds the driver's whole environment."""
    monkeypatch.setenv("MY_SECRET", "swordfish-7")
    node, run = tmp_path / "node", tmp_path / "run"
    folder = node / "ray/session_2026/logs"
    folder.mkdir(parents=True)
    run.mkdir()
    log = folder / "runtime_env_agent.log"
    lines = "".join(f"env: {{'HF_TOKEN': '{SECRET}', 'N': '{number}'}} swordfish-7\n" for number in range(12))
    syncer = Syncer(node, run, "n1")
    for turn in range(3):
        with open(log, "a") as file:
            file.write(lines + "half a line with HF_TO")
        assert syncer.pass_().target_error is None
        with open(log, "a") as file:
            file.write(f"KEN={SECRET}\n")
        if turn == 1:  # a restart goes on where it was
            syncer = Syncer(node, run, "n1")
    assert syncer.pass_(last=True).complete
    copy = run / "ray/n1/session_2026/logs/runtime_env_agent.log"
    assert copy.stat().st_size == log.stat().st_size
    text = copy.read_text()
    assert SECRET not in text and "swordfish" not in text and text.count("'N': '11'") == 3
    assert sorted(path.name for path in copy.parent.iterdir()) == [log.name]  # nothing was set aside


def test_secrets_of_other_processes_are_known():
    secrets = {
        "SOME_TOKEN": "0123456789abcdef",
        "SOME_TOKEN_PATH": "/run/secret-path",
        "TOKENIZERS_PARALLELISM": "false-false",
    }
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **secrets}) as process:
        try:
            found = secrets_of_processes()
        finally:
            process.kill()
    assert "0123456789abcdef" in found
    assert not found & {"/run/secret-path", "false-false"}


def test_secrets_of_a_process_that_has_just_begun_are_known_within_a_second(tmp_path):
    sender = Syncer(tmp_path / "node", tmp_path, "n1").sender
    value = f"fresh-{os.getpid()}-0123456789abcdef"
    assert value not in sender.secrets()
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "SITE_API_KEY": value}) as process:
        try:
            time.sleep(1)
            assert value in sender.secrets()
        finally:
            process.kill()


def test_a_sync_that_begins_when_the_workers_have_ended_takes_out_their_secrets(tmp_path):
    """As after a supervisor that was killed, or by a salvage."""
    node, run = tmp_path / "node", tmp_path / "run"
    (node / "tmp").mkdir(parents=True)
    run.mkdir()
    value = f"ended-{os.getpid()}-0123456789abcdef"
    first = Syncer(node, run, "n1")
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "SITE_API_KEY": value}) as process:
        try:
            wait_until(lambda: value in first.sender.secrets(), 30)
        finally:
            process.kill()
    (node / "tmp" / "a.qdstrm").write_bytes(bytes(100) + value.encode() + bytes(100))

    assert Syncer(node, run, "n1").pass_(last=True).complete

    assert (run / "nodes/n1/tmp/a.qdstrm").read_bytes() == bytes(100) + b"*" * len(value) + bytes(100)
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
    assert [(path, path.stat().st_mode & 0o777) for path in kept] == [(node / "sync/secrets.json", 0o600)]


@pytest.mark.nsys
@pytest.mark.parametrize("turn", range(2))
def test_a_real_report_arrives_without_the_secrets_of_its_process(tmp_path, monkeypatch, turn):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    node, run = tmp_path / "node", tmp_path / "run"
    (node / "profiles/nsight").mkdir(parents=True)
    run.mkdir()
    report = node / "profiles/nsight/a.nsys-rep"
    code = "import nvtx\nwith nvtx.annotate('step 3', domain='rlprof'): pass"
    profile(report, code, TMPDIR=str(tmp_path))
    assert SECRET.encode() in report.read_bytes()
    mirrored = mirror(report, str(tmp_path / "out"), "nsight", "w", 0)  # before the sync looks at it
    assert Syncer(node, run, "n1").pass_().complete
    for copy in (run / "profiles/nsight/a.nsys-rep", mirrored):
        assert SECRET.encode() not in copy.read_bytes() and copy.stat().st_size == report.stat().st_size
        assert look(copy).steps == {3}
