"""Live logs: what is new comes over by appending, a restart goes on, and a log that rests costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlprof_ops.collect.sync.__main__ import Syncer
from rlprof_ops.collect.sync.live_logs import LiveLogs


def logs(tmp_path: Path, said: list[str]) -> LiveLogs:
    for name in ("node/live", "run/logs", "run/profiles"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    return LiveLogs(tmp_path / "node", tmp_path / "run", said.append)


def test_a_log_comes_over_by_its_new_tail(tmp_path):
    live = logs(tmp_path, [])
    source, target = tmp_path / "node/live/driver.log", tmp_path / "run/logs/driver.log"
    assert live.look() == 0
    with open(source, "ab", buffering=0) as file:
        for line in (b"one\n", b"half", b" a line\n", b"10%\r"):
            file.write(line)
            # A line goes whole: what stands in it tells whether it holds a secret.
            assert live.look() == {b"half": 0, b" a line\n": 12}.get(line, len(line))
            assert live.look() == 0
        assert target.read_bytes() == source.read_bytes()
        live.close()
        file.write(b"after a restart\n")
        again = logs(tmp_path, [])
        assert again.look() == len(b"after a restart\n")
        file.write(b"the last words\n")
        again.close()
    syncer = Syncer(tmp_path / "node", tmp_path / "run", "n1")
    assert syncer.pass_(last=True).complete
    syncer.close()
    assert target.read_bytes() == source.read_bytes()


def test_something_else_under_that_name_is_left_to_the_last_pass(tmp_path):
    said: list[str] = []
    live = logs(tmp_path, said)
    (tmp_path / "run/logs/driver.log").write_text("of another\n")
    (tmp_path / "node/live/driver.log").write_text("this driver's own words\n")
    assert live.look() == 0 and "the last pass sets it aside" in said[0]
    syncer = Syncer(tmp_path / "node", tmp_path / "run", "n1")
    assert syncer.pass_(last=True).complete
    syncer.close()
    assert (tmp_path / "run/logs/driver.log").read_text() == "this driver's own words\n"
    assert (tmp_path / "run/logs/driver.log.before-1").read_text() == "of another\n"


def test_storage_in_trouble_is_said_and_left_alone_for_a_while(tmp_path):
    said: list[str] = []
    live = logs(tmp_path, said)
    (tmp_path / "node/live/driver.log").write_text("words\n")
    (tmp_path / "run/logs").rmdir()
    (tmp_path / "run/logs").write_text("no folder")
    assert (live.look(), live.look(), len(said)) == (0, 0, 1)


LONG = b"x" * 70_000 + b" HF_TOKEN=q7Zk1Vw9Xr2Lm4Tp " + b"y" * 70_000
KEY = (
    b"-----BEGIN RSA PRIVATE KEY-----\n"
    + b"MIIEowIBAAKCAQEA0Z3VS5JJcds3xfn/ygWyF8PbnGy\n" * 20
    + b"x0Zq==\n-----END RSA PRIVATE KEY-----\n"
)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_secret_that_arrives_in_pieces_is_masked(tmp_path, restarts):
    """A key line by line, a value on two lines, and one in a line that is longer than what is looked at."""
    known = "correct-horse-battery"
    source, target = tmp_path / "node/live/driver.log", tmp_path / "run/logs/driver.log"
    live = logs(tmp_path, [])
    lines = [
        *KEY.splitlines(True),
        known[:13].encode() + b"\n",
        known[13:].encode() + b"\n",
        b"token: |\n",
        b"  q7Zk1Vw9Xr2Lm4Tp\n",
    ]
    middle = LONG.index(b"Vw9")
    for piece in (*lines, LONG[:middle], LONG[middle:], b"\n"):
        with open(source, "ab") as file:
            file.write(piece)
        live._secrets = lambda: {known}
        live.look()
        if restarts:
            live.close()
            live = logs(tmp_path, [])
    live.close()
    shown = target.read_bytes()
    assert len(shown) == source.stat().st_size
    assert not [
        piece for piece in (b"MII", b"x0Zq", b"correct", b"battery", b"q7Z", b"Vw9", b"4Tp") if piece in shown
    ]
