"""A file is there whole or not at all."""

import os
import stat
import threading

import pytest

from rlprof_ops.host import atomic


@pytest.mark.parametrize("durable", [False, True])
def test_the_new_content_takes_the_place_of_the_old(tmp_path, durable):
    path = tmp_path / "a.json"
    path.write_text("old")
    with open(path) as reader:
        atomic.write(path, "new é", durable=durable)
        assert reader.read() == "old"

    assert path.read_text(encoding="utf-8") == "new é"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("mode, umask, wanted", [(0o600, 0, 0o600), (0o666, 0o027, 0o640)])
def test_the_mode_is_never_wider(tmp_path, mode, umask, wanted):
    before = os.umask(umask)
    try:
        atomic.write(tmp_path / "a", b"x", mode=mode)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == wanted


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("old")
    monkeypatch.setattr(
        os, "replace", lambda *names, **folders: (_ for _ in ()).throw(OSError(28, "No space left"))
    )

    with pytest.raises(OSError, match="No space left"):
        atomic.write(path, "new")

    assert [entry.name for entry in tmp_path.iterdir()] == ["a"] and path.read_text() == "old"


def test_a_link_at_the_temporary_name_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    trap = tmp_path / f".a.{os.getpid()}.{threading.get_ident()}"
    trap.symlink_to(victim)

    atomic.write(tmp_path / "a", "new")

    assert victim.read_text() == "mine" and (tmp_path / "a").read_text() == "new"


def test_many_writers_leave_one_whole_file(tmp_path):
    texts = [str(number) * 20_000 for number in range(8)]
    threads = [threading.Thread(target=atomic.write, args=(tmp_path / "a", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (tmp_path / "a").read_text() in texts
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
