"""A command that is run to its end never raises and never waits for longer than it may."""

from __future__ import annotations

import os
import sys
import time

from rlprof_ops.host import command


def test_exit_code_and_both_outputs_come_back():
    done = command.run([sys.executable, "-c", "import sys; print(1); sys.exit('no')"], 30)
    assert (done.returncode, done.stdout, done.stderr) == (1, "1\n", "no\n")


def test_what_cannot_be_run_says_why():
    missing = command.run(["/nowhere/tool"], 30)
    assert missing.returncode == 127 and "/nowhere/tool" in missing.stderr
    assert command.run(["true", "a\0b"], 30).returncode == 127
    assert command.output_of("/nowhere/tool") == ""


def test_what_is_not_done_in_time_is_ended():
    begin = time.monotonic()
    done = command.run(["sleep", "60"], 0.3)
    assert (done.returncode, done.stdout, done.stderr) == (127, "", "not done after 300 ms")
    assert time.monotonic() - begin < 20


def test_output_is_that_of_a_command_that_succeeds():
    assert command.output_of("echo", "here") == "here\n"
    assert command.output_of("bash", "-c", "echo here; exit 3") == ""


def test_a_logged_command_adds_to_its_log_and_tells_its_exit_code(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    said = ["bash", "-c", "echo out; echo err >&2; exit 3"]
    assert command.logged(said, 30, os.environ, log) == 3
    assert log.read_text() == "before\nout\nerr\n"


def test_a_logged_command_is_ended_when_nobody_wants_it_any_more(tmp_path):
    log, begin = tmp_path / "log", time.monotonic()
    wanted = ["bash", "-c", "echo begun; sleep 60"]
    assert command.logged(wanted, 60, os.environ, log, lambda: log.read_text() == "begun\n") is None
    assert time.monotonic() - begin < 20
