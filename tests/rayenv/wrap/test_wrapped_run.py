"""`rlprof wrap` outside a job: a manifest with a row for each window, and why it is missing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from tests.rayenv.stand_ins import own_environment

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.job.run_json import schema

TRAINING = """
import os, signal, sys, time
from rlprof_ops.runtime import profiler
prof = profiler.from_env()
for step in range(1, 5):
    with prof.step(step):
        if "--die" in sys.argv and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
print("trained", flush=True)
if "--wait" in sys.argv:
    time.sleep(100)
prof.close()
sys.exit(7 if "--fail" in sys.argv else 0)
"""
WRAP = [sys.executable, "-m", "rlprof_ops", "wrap"]


def environment(**more):
    return own_environment(
        **{
            "RLPROF_STEPS": "2,9",
            "RLPROF_WORKERS": "*",
            "RLPROF_BACKEND": "memory",
            "RLPROF_NODE": "n1",
            **more,
        }
    )


def run(folder, *words, wrap=WRAP, **more):
    (folder / "train.py").write_text(TRAINING)
    command = [*wrap, "--", *words] if words[0] != "train.py" else [*wrap, "--", sys.executable, *words]
    return subprocess.run(
        command, env=environment(**more), cwd=folder, capture_output=True, text=True, timeout=120
    )


def manifest(folder):
    (found,) = folder.glob("rlprof-profiles/*/manifest.json")
    return Manifest.load(found.parent)


def rows(found):
    return {(each.rank, each.start): (each.state, each.reason) for each in found.captures}


NSYS = pytest.param("nsight", marks=pytest.mark.nsys)
PROGRAM = os.path.basename(sys.executable)


@pytest.mark.parametrize("backend", [pytest.param("torch", marks=pytest.mark.torch), NSYS])
@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ((), 0, "training ended before step 9 (last step seen: 4)"),
        (("--fail",), 7, f"{PROGRAM} ended with exit code 7 before step 9 (last step seen: 4)"),
    ],
)
def test_a_step_that_never_ran_is_a_row_with_its_reason(tmp_path, backend, words, code, reason):
    more = {"RLPROF_OPTIONS": '{"t": "nvtx"}'} if backend == "nsight" else {}

    done = run(tmp_path, "train.py", *words, RLPROF_BACKEND=backend, **more)

    assert done.returncode == code, done.stderr
    found = manifest(tmp_path)
    assert rows(found) == {(0, 2): ("ok", ""), (0, 9): ("missing", reason)}
    assert f"rlprof: missing: {backend}/trainer/rank0/step9-9: {reason}" in done.stderr
    assert f"rlprof: 2 captures planned: 1 ok, 1 missing: {found.run_dir}/manifest.json" in done.stderr


@pytest.mark.torch
def test_a_program_that_is_killed_in_a_window_ends_so_and_says_so(tmp_path):
    done = run(tmp_path, "train.py", "--die", RLPROF_BACKEND="torch", RLPROF_STEPS="3,9")

    assert done.returncode == -signal.SIGKILL, done.stderr
    killed = f"{PROGRAM} was ended by signal 9 (SIGKILL)"
    assert rows(manifest(tmp_path)) == {
        (0, 3): ("missing", f"the worker ended while the window was open (last step seen: 3); {killed}"),
        (0, 9): ("missing", f"{killed} before step 9 (last step seen: 3)"),
    }


@pytest.mark.parametrize(
    "wrap", [WRAP, [sys.executable, "-m", "rlprof_ops.rayenv.wrap", "--worker", "trainer"]]
)
def test_a_program_that_marks_no_step_has_rows_too(tmp_path, wrap):
    done = run(tmp_path, "sh", "-c", "exit 3", wrap=wrap)

    assert done.returncode == 3, done.stderr
    (state, reason) = rows(manifest(tmp_path))[0, 2]
    assert state == "missing"
    assert reason.startswith(
        "trainer rank 0 ran and marked no step; sh ended with exit code 3; no process of"
    )


def test_a_pattern_that_nobody_matches_is_said(tmp_path):
    done = run(tmp_path, "train.py", RLPROF_WORKERS="trainr")

    assert done.returncode == 0
    assert rows(manifest(tmp_path))[None, 2][1].startswith("no worker matched pattern 'trainr' (seen: ")


def test_a_missing_profiler_is_the_reason_of_its_windows(tmp_path):
    run(tmp_path, "sh", "-c", "true", RLPROF_BACKEND="nsight", RLPROF_NSYS="/nowhere")

    assert {reason[:19] for _, reason in rows(manifest(tmp_path)).values()} == {"no nsys on node n1 "}


def test_each_run_has_a_folder_and_nothing_asked_leaves_none(tmp_path):
    for steps in ("2", "3", ""):
        asked = {"RLPROF_STEPS": steps, "RLPROF_WORKERS": "*" if steps else ""}
        assert run(tmp_path, "sh", "-c", "true", **asked, RLPROF_BACKEND="").returncode == 0

    assert len(list(tmp_path.glob("rlprof-profiles/*/manifest.json"))) == 2


def test_a_folder_that_cannot_be_written_costs_a_line(tmp_path):
    (tmp_path / "file").write_text("")

    done = run(tmp_path, "sh", "-c", "exit 3", RLPROF_RUN_DIR=str(tmp_path / "file" / "run"))

    assert done.returncode == 3
    assert "rlprof: this run has no manifest: " in done.stderr


@pytest.mark.nsys
@pytest.mark.torch
def test_ranks_of_torchrun_are_one_run(tmp_path):
    torchrun = [
        str(Path(sys.executable).with_name("torchrun")),
        "--nproc-per-node",
        "2",
        "--master-port",
        "0",
    ]

    done = run(
        tmp_path,
        *torchrun,
        "train.py",
        RLPROF_BACKEND="nsight",
        RLPROF_OPTIONS='{"t": "nvtx"}',
        OMP_NUM_THREADS="1",
    )

    assert done.returncode == 0, done.stderr
    never = ("missing", "training ended before step 9 (last step seen: 4)")
    assert rows(manifest(tmp_path)) == {
        (rank, step): never if step == 9 else ("ok", "") for rank in (0, 1) for step in (2, 9)
    }


def test_tasks_of_one_step_of_slurm_are_one_run(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    step = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
    tasks = [
        subprocess.Popen(
            [*WRAP, "--", sys.executable, "train.py", *["--fail"] * rank],
            env=environment(SLURM_PROCID=str(rank), **step),
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]

    assert [task.wait(120) for task in tasks] == [0, 7]
    found = manifest(tmp_path)
    assert found.job == "local-4711-0"
    assert {(rank, step) for rank, step in rows(found)} == {(0, 2), (0, 9), (1, 2), (1, 9)}
    assert rows(found)[0, 9][1] == f"{PROGRAM} ended with exit code 7 before step 9 (last step seen: 4)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_the_program_and_its_end_is_ours(tmp_path, number):
    (tmp_path / "train.py").write_text(TRAINING)
    process = subprocess.Popen(
        [*WRAP, "--", sys.executable, "train.py", "--wait"],
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "trained\n"
    (record,) = tmp_path.glob("rlprof-profiles/*/run.json")
    child = next(
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == process.pid
    )

    process.send_signal(number)

    assert process.wait(60) == -number
    until = time.monotonic() + 30
    while _parent(child) is not None and time.monotonic() < until:
        time.sleep(0.1)
    assert _parent(child) is None, "the program outlived its wrap"
    if number == signal.SIGTERM:
        found = json.loads(record.read_text())
        jsonschema.validate(found, schema())
        assert found["processes"] and found["driver"]["signal"] == number
        assert rows(manifest(tmp_path))[0, 9][1].startswith(f"{PROGRAM} was ended by signal 15 (SIGTERM)")


def _parent(pid):
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)
