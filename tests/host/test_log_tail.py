"""The end of a log, and of it what a reason in the manifest quotes."""

from __future__ import annotations

from rlprof_ops.host import foreign

SAID = """\
node n1: `ray start` ended; its last words:
    raise Exception(
Exception: The current node timed out during startup.
\x1b[36m2026-11-23 INFO -- Local node IP\x1b[39m: 192.0.2.2
"""


def test_a_tail_has_no_colours(tmp_path):
    (tmp_path / "log").write_text(SAID)
    assert foreign.tail(tmp_path / "log").endswith("INFO -- Local node IP: 192.0.2.2\n")


def test_a_reason_takes_the_line_that_names_the_exception():
    lines = SAID.splitlines()
    assert foreign.in_one_line(SAID) == f"{lines[0]} {lines[2]}"
    assert foreign.in_one_line("\n".join(lines[:2])) == f"{lines[0]} raise Exception("
    logged = "2026-11-27 04:12:40,120\tERROR services.py:1357 -- Failed to start the dashboard"
    quoted = "2026-11-27 04:13:01,268\tINFO head.py:296 -- Loaded 9 subprocess modules"
    assert foreign.in_one_line(f"{lines[0]}\n{logged}\n{quoted}") == f"{lines[0]} {logged}"
    assert foreign.in_one_line("told to end") == "told to end" and foreign.in_one_line("\n") == ""
