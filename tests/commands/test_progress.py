"""The bar where a person waits: on a terminal, and only there."""

import os
import select
import time

from rlprof_ops.commands._progress import bar


def test_nothing_is_drawn_into_a_file(tmp_path):
    with open(tmp_path / "log", "w") as stream, bar(stream, "reports") as progress:
        progress(1, 2, "x")

    assert (tmp_path / "log").read_text() == ""


def test_a_terminal_shows_how_many_of_how_many():
    ours, theirs = os.openpty()
    shown = ""
    with open(theirs, "w") as terminal, bar(terminal, "reports") as progress:
        for done in range(1, 41):
            progress(done, 40, "x")
            terminal.flush()
            shown += os.read(ours, 65536).decode()
        until = time.monotonic() + 10  # a terminal gives what there is in pieces
        while "40/40" not in shown and time.monotonic() < until:
            shown += os.read(ours, 65536).decode() if select.select([ours], [], [], 1)[0] else ""
    os.close(ours)

    assert "40/40" in shown.rpartition("reports")[2]
    assert "1/40" in shown
