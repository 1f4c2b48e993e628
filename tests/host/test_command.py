"""A command that is run to its end never raises and never waits for longer than it may."""

from __future__ import annotations

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
