"""`rlprof wrap` outside a job: a manifest with a row for each window, and why it is missing."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jsonschema
import pytest
from tests.rayenv.stand_ins import own_environment

from rlprof_ops import backends
from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.job.run_json import schema
from rlprof_ops.rayenv.wrap import masking_progress
from rlprof_ops.rayenv.wrap.wrapped_run import WrappedRun
from rlprof_ops.request import ProfileRequest, request_from_dict

TRAINING = """
import os, signal, sys, time
from rlprof_ops.runtime import profiler
if "--move" in sys.argv:  # as hydra.job.chdir does
    os.makedirs("outputs")
    os.chdir("outputs")
prof = profiler.from_env()
for step in range(1, 5):
    with prof.step(step):
        if "--die" in sys.argv and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
print("trained", flush=True)
if "--wait" in sys.argv:
    time.sleep(600)
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


def copied(folder):
    return [str(path.relative_to(folder).parent) for path in folder.rglob("copies/**/*.*") if path.is_file()]


@pytest.mark.parametrize(
    "wrap", [WRAP, [sys.executable, "-m", "rlprof_ops.rayenv.wrap", "--worker", "trainer"]]
)
def test_copies_go_to_a_folder_from_where_the_program_was_started(tmp_path, wrap):
    more = {"RLPROF_FLAGS": "host", "RLPROF_STEPS": "2", "RLPROF_OUTPUT_DIR": "copies"}

    done = run(tmp_path, "train.py", "--move", wrap=wrap, **more)

    assert done.returncode == 0, done.stderr
    assert copied(tmp_path) == ["copies/memory/trainer/rank0"]


@pytest.mark.nsys
def test_a_report_that_comes_when_the_program_ends_is_copied_too(tmp_path):
    options = '{"t": "nvtx", "capture-range": "nvtx"}'
    more = {"RLPROF_BACKEND": "nsight", "RLPROF_OPTIONS": options, "RLPROF_STEPS": "2"}

    done = run(tmp_path, "train.py", RLPROF_OUTPUT_DIR="copies", **more)

    assert done.returncode == 0, done.stderr
    assert copied(tmp_path) == ["copies/nsight/trainer/rank0"]


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
    until = time.monotonic() + 90
    while _parent(child) is not None and time.monotonic() < until:
        time.sleep(0.1)
    assert _parent(child) is None, "the program outlived its wrap"
    if number == signal.SIGTERM:
        found = json.loads(record.read_text())
        jsonschema.validate(found, schema())
        assert found["processes"] and found["driver"]["signal"] == number
        assert rows(manifest(tmp_path))[0, 9][1].startswith(f"{PROGRAM} was ended by signal 15 (SIGTERM)")


CHECKPOINTS = """
import signal, sys, time
def checkpoint(number, frame):
    print("checkpoint on", signal.Signals(number).name, flush=True)
    sys.exit(6)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}:
    signal.signal(number, checkpoint)
print("ready", flush=True)
time.sleep(600)
"""


def checkpoints(folder, command, ready=True):
    """The wrap of a program that saves a checkpoint at any signal, once it waits; None when it is ended
    before, unless it must be `ready`.
    """
    process = subprocess.Popen(
        [*command, *WRAP, "--", sys.executable, "-c", CHECKPOINTS],
        env=environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    if process.stdout.readline() != "ready\n":
        process.communicate(timeout=60)
        assert not ready
        return None
    return process


@pytest.mark.parametrize("name", ["XCPU", "ALRM", "URG", "RTMIN", "PWR", "ABRT", "WINCH"])
def test_a_program_that_saves_a_checkpoint_at_a_signal_gets_it(tmp_path, name):
    process = checkpoints(tmp_path, [])
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.communicate(timeout=60)[0] == f"checkpoint on SIG{name}\n" and process.returncode == 6


def test_an_alarm_that_was_set_for_it_reaches_the_program(tmp_path):
    """As `perl -e 'alarm 60; exec @ARGV'` does."""
    for seconds in (8, 60):  # a busy machine has not begun the program after 8
        alarm = f"import os, signal, sys; signal.alarm({seconds}); os.execv(sys.argv[1], sys.argv[1:])"
        process = checkpoints(tmp_path, [sys.executable, "-c", alarm], ready=seconds == 60)
        if process:
            break
    assert process.communicate(timeout=120)[0] == "checkpoint on SIGALRM\n" and process.returncode == 6


def _parent(pid):
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)


SECRETS = {"MY_SERVICE_TOKEN": "zq9XkPq7RrT2mvW8sLd4", "MYSITE_DB_PASSWORD": "Gh72kd9Lx0aPqq"}


def modes(folder):
    return {path.stat().st_mode & 0o777 for path in (folder, folder / "profiles", folder / "nodes")}


@pytest.mark.nsys
@pytest.mark.parametrize("options", ['{"t": "nvtx"}', '{"t": "nvtx", "capture-range": "nvtx"}'])
def test_reports_hold_no_secret_of_the_environment_and_are_not_for_everybody(tmp_path, options):
    more = {"RLPROF_BACKEND": "nsight", "RLPROF_STEPS": "2", "RLPROF_OPTIONS": options, **SECRETS}

    done = run(tmp_path, "train.py", **more)

    assert done.returncode == 0, done.stderr
    found = manifest(tmp_path)
    assert set(rows(found).values()) == {("ok", "")}
    (report,) = Path(found.run_dir).rglob("*.nsys-rep")
    assert not [name for name, value in SECRETS.items() if value.encode() in report.read_bytes()]
    assert report.stat().st_mode & 0o777 == 0o640 and modes(Path(found.run_dir)) == {0o750}
    assert "may hold secrets" not in done.stderr


def wrapped(tmp_path, report, said):
    folder = tmp_path / "run"
    ours = WrappedRun(folder, "local-1", said.append)
    assert ours.begin(["train"], ProfileRequest())
    place = folder / "profiles" / report
    place.parent.mkdir(parents=True)
    return ours, place


def test_a_report_that_could_not_be_read_without_its_secrets_is_for_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh12345")
    monkeypatch.setattr(type(backends.get("nsight")), "why_unreadable", lambda *_: "no")
    said = []
    ours, report = wrapped(tmp_path, "nsight/a.nsys-rep", said)
    whole = b"NVIDIA Tegra Profiler Report hf_abcdefgh12345 [END]"
    report.write_bytes(whole)

    ours.end(0)

    assert report.read_bytes() == whole and report.stat().st_mode & 0o777 == 0o600
    assert said[0] == (
        f"{report} may hold secrets of the environment, pass it on to nobody: without them Nsight could not"
        " read it any more (no)"
    )


def slow(seconds):
    def why_unreadable(*_):
        time.sleep(seconds)
        return ""

    return why_unreadable


SECRET_REPORT = b"NVIDIA Tegra Profiler Report hf_abcdefgh12345 [END]"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_masking_that_takes_long_is_said_and_ends_at_a_signal(tmp_path, monkeypatch, number):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh12345")
    monkeypatch.setattr(masking_progress, "_FIRST_S", 0.05)
    backend = type(backends.get("nsight"))
    said = []

    def say(line):
        said.append(line)
        if line.startswith("takes"):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(backend, "why_unreadable", slow(100))
    ours, report = wrapped(tmp_path, "nsight/a.nsys-rep", said)
    ours = WrappedRun(ours.folder, ours.job, say)
    report.write_bytes(SECRET_REPORT)
    report.chmod(0o644)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {number})  # as the program's parent has them
    try:
        ours.end(0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    assert report.read_bytes() == SECRET_REPORT and report.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in report.parent.iterdir()] == ["a.nsys-rep"]
    assert said[:2] == [
        "takes secrets of the environment out of 1 report, 0 B of 51 B so far; SIGINT (Ctrl-C) or SIGTERM"
        " ends that, and what is left is then for its owner alone",
        f"{report} may hold secrets of the environment, pass it on to nobody: ended by {number.name}",
    ]
    assert json.loads((ours.folder / "run.json").read_text())["driver"]["exit_code"] == 0
    assert (ours.folder / "manifest.json").exists()


def test_a_signal_of_before_the_end_of_the_program_does_not_end_the_masking(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh12345")
    monkeypatch.setattr(type(backends.get("nsight")), "why_unreadable", slow(0))
    ours, report = wrapped(tmp_path, "nsight/a.nsys-rep", [])
    report.write_bytes(SECRET_REPORT)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # others of the tests have not blocked it
        ours.end(0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    assert b"hf_abcdefgh12345" not in report.read_bytes()
    assert report.stat().st_mode & 0o777 == 0o640


def test_a_rank_masks_neither_what_another_one_masks_nor_waits_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh12345")
    seen = []
    monkeypatch.setattr(
        type(backends.get("nsight")), "why_unreadable", lambda _, report, copy: seen.append(report.name) or ""
    )
    ours, report = wrapped(tmp_path, "nsight/b.nsys-rep", [])
    other, killed = report.with_name("a.nsys-rep"), report.with_name("c.nsys-rep")
    for each in (report, other, killed):
        each.write_bytes(SECRET_REPORT)
    record = json.loads((ours.folder / "run.json").read_text())
    beside = subprocess.Popen(["sleep", "100"])
    host = next(iter(record["processes"])).rpartition(":")[0]
    for pid, path in ((beside.pid, other), (2**22 + 1, killed)):
        row = {"started_ns": 1, "exit_code": None, "reports": [str(path.relative_to(ours.folder))]}
        record["processes"][f"{host}:{pid}"] = row
    (ours.folder / "run.json").write_text(json.dumps(record))
    try:
        ours.end(0)
    finally:
        beside.kill()
        beside.wait()

    assert sorted(seen) == ["b.nsys-rep", "c.nsys-rep"]
    jsonschema.validate(json.loads((ours.folder / "run.json").read_text()), schema())


def test_a_file_with_the_environment_of_a_process_is_for_its_owner_alone(tmp_path):
    ours, beside = wrapped(tmp_path, "rocprof_sys/trainer/rank0/metadata-1.json", [])
    beside.write_text("{}")

    ours.end(0)

    assert beside.stat().st_mode & 0o777 == 0o600


def test_a_capture_that_waits_is_named_where_no_job_finds_what_it_waits_for(tmp_path: Path) -> None:
    waits = {"workers": "trainer", "backend": "torch", "when": {"rank": "slow"}}
    said: list[str] = []
    assert WrappedRun(tmp_path, "local-1", said.append).begin(
        ["true"], request_from_dict({"captures": [waits]})
    )
    assert len(said) == 1 and said[0].startswith("capture 1: `when` never opens a window: outside a job")
    assert json.loads((tmp_path / "run.json").read_text())["request_notes"] == said
