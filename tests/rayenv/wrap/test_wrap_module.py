"""`python -m rlprof_ops.rayenv.wrap`: what torchrun and srun start in front of a training process."""

import os
import subprocess
import sys

import pytest
from tests.nsys_stand_in import FakeNsys
from tests.rayenv.stand_ins import own_environment

from rlprof_ops.rayenv.wrap import __main__ as wrap

ASK = '{"captures": [{"workers": ["*"], "steps": "3:5"%s}]}'


def start(tmp_path, nsys, code, ask=ASK % "", **more):
    env = own_environment(
        RLPROF_NODE_DIR=str(tmp_path), RLPROF_NSYS=str(nsys), RLPROF_REQUEST_JSON=ask, **more
    )
    command = [sys.executable, "-m", "rlprof_ops.rayenv.wrap", sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


SAY = "import os, sys; print(os.environ.get(%r)); sys.exit(7)"


def test_it_says_how_it_is_used():
    with pytest.raises(SystemExit, match=r"usage: python -m rlprof_ops.rayenv.wrap"):
        wrap.main(["--worker"])


def test_a_program_that_does_not_exist_is_exit_code_127(capsys):
    with pytest.raises(SystemExit, match="127"):
        wrap.main(["--worker", "w", "/no/such program"])

    assert capsys.readouterr().err == "rlprof: no program '/no/such program'\n"


def test_without_nsys_the_program_runs_unprofiled_or_not_at_all(tmp_path):
    done = start(tmp_path, "/nowhere", SAY % "RLPROF_NOT_WRAPPED")
    refused = start(tmp_path, "/nowhere", SAY % "HOME", ask=ASK % ', "on_error": "fail"')

    assert done.returncode == 7 and done.stdout.startswith("no nsys on node "), done.stderr
    assert refused.returncode == 1 and "cannot be profiled: no nsys on node " in refused.stderr


def test_selected_ranks_alone_are_wrapped(tmp_path):
    nsys = FakeNsys(tmp_path)
    ask = ASK % ', "ranks": [1]'

    plain = start(tmp_path, nsys, SAY % "RLPROF_NSYS_SESSION", ask=ask, RANK="0")
    session = start(tmp_path, nsys, SAY % "RLPROF_NSYS_SESSION", ask=ask, RANK="1").stdout.strip()

    assert (plain.returncode, plain.stdout) == (7, "None\n")
    assert session.startswith("rlprof-local-worker-r1-")
    assert nsys.environments() == [(session, str(tmp_path / "tmp"))]
    assert nsys.words()[0][:2] == ["launch", f"--session-new={session}"]


def test_a_request_that_cannot_be_read_does_not_stop_training(tmp_path):
    done = start(tmp_path, "/nowhere", SAY % "RLPROF_NOT_WRAPPED", ask="{")

    assert (done.returncode, done.stdout) == (7, "None\n")
    assert "nothing is profiled: " in done.stderr


def test_options_that_make_no_command_do_not_stop_training_either_unless_asked_to(tmp_path):
    ask = ASK % ', "options": {"capture-range": "hotkey"}, "on_error": "%s"'

    done = start(tmp_path, "/nowhere", SAY % "RLPROF_NOT_WRAPPED", ask=ask % "continue")
    refused = start(tmp_path, "/nowhere", SAY % "HOME", ask=ask % "fail")

    assert done.returncode == 7 and "capture-range 'hotkey'" in done.stdout
    assert refused.returncode == 2 and "capture-range 'hotkey'" in refused.stderr


def test_on_demand_wraps_a_process_that_no_window_selects(tmp_path):
    nsys = FakeNsys(tmp_path)

    done = start(tmp_path, nsys, SAY % "RLPROF_WORKER", ask="", RLPROF_ON_DEMAND="nsight")

    assert (done.returncode, done.stdout) == (7, "worker\n"), done.stderr
    assert nsys.words()[0][0] == "launch"


@pytest.mark.nsys
def test_the_programs_exit_code_and_umask_are_its_own_under_real_nsys(tmp_path):
    code = "import os; os.umask(m := os.umask(0)); print(os.environ['RLPROF_NSYS_SESSION'], oct(m)); exit(7)"
    before = os.umask(0o037)
    try:
        done = start(tmp_path, "", code, RANK="3")
    finally:
        os.umask(before)

    assert done.returncode == 7 and done.stdout.startswith("rlprof-local-worker-r3-"), done.stderr
    assert done.stdout.endswith(" 0o37\n")
    assert not list((tmp_path / "tmp").glob(".rlprof-pending-*"))
