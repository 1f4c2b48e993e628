"""`rlprof harvest` and `scripts/harvest.sh`: what a person types and sees."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.collect.runfolder import RunFolder

from rlprof_ops.collect.harvest.manifest_table import printable, steps_text
from rlprof_ops.collect.harvest.watch import watch_job
from rlprof_ops.errors import UsageError
from rlprof_ops.job.run_folder import run_folder

HOME = Path(__file__).resolve().parents[3]
REQUEST = {"captures": [{"backend": "torch", "workers": ["policy_worker"], "steps": "3:5, 7"}]}


@pytest.fixture
def job(tmp_path):
    job = RunFolder(tmp_path / "with space" / "4711-logs", REQUEST)
    job.worker("policy_worker", 0, last_step=5)
    job.report("torch", "policy_worker", 0, 3, 5)
    job.write(driver={"started_ns": 2, "ended_ns": 3, "exit_code": 7, "signal": None})
    return job


def call(argv, cwd, **env):
    return subprocess.run(
        argv,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "RLPROF_PYTHON": sys.executable, **env},
    )


def test_the_table_shows_each_capture_and_the_reason_and_ends_with_3(job):
    done = call(
        [sys.executable, "-m", "rlprof_ops", "harvest", "4711"],
        job.root.parent,
        PYTHONPATH=str(HOME / "python"),
    )
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["worker", "rank", "host", "steps", "backend", "state", "size", "file"]
    assert lines[2].split()[:6] == ["policy_worker", "0", "n1", "3:5", "torch", "ok"]
    assert (
        "missing: torch/policy_worker/rank0/step7-7: the driver ended with exit code 7 before step 7 (last"
        " step seen: 5)" in lines
    )
    assert "2 captures planned: 1 ok, 1 missing" in lines
    assert done.stderr == ""


def test_json_is_the_manifest(job):
    done = call(
        [sys.executable, "-m", "rlprof_ops", "harvest", str(job.root), "--json"],
        HOME,
        PYTHONPATH=str(HOME / "python"),
    )
    assert json.loads(done.stdout) == json.loads((job.root / "manifest.json").read_text())


def test_the_script_works_from_any_folder(job):
    done = call([str(HOME / "scripts/harvest.sh"), "4711"], job.root.parent)
    assert done.returncode == 3 and "1 ok, 1 missing" in done.stdout, done.stderr


def test_the_script_finds_its_home_when_slurm_runs_a_copy(job, tmp_path):
    spool = tmp_path / "spool" / "slurm_script"
    spool.parent.mkdir()
    spool.write_bytes((HOME / "scripts/harvest.sh").read_bytes())
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "scontrol").write_text(
        f'#!/bin/sh\necho "JobId=$3 JobName=x"\necho "   Command={HOME}/scripts/harvest.sh 4711"\necho "  '
        ' WorkDir=/x"\n'
    )
    (fake / "scontrol").chmod(0o755)
    done = call(
        ["bash", str(spool), "4711"], job.root.parent, SLURM_JOB_ID="9", PATH=f"{fake}:{os.environ['PATH']}"
    )
    assert done.returncode == 3 and "1 ok, 1 missing" in done.stdout, done.stderr


def test_the_script_without_a_home_says_so(tmp_path):
    done = call([str(HOME / "scripts/harvest.sh"), "1"], tmp_path, RLPROF_HOME="/nowhere")
    assert (done.returncode, done.stderr) == (
        2,
        "harvest.sh: rlprof-ops is not in /nowhere; set RLPROF_HOME to its checkout\n",
    )


def test_the_newest_attempt_of_a_requeued_job_is_meant(tmp_path):
    for name in ("7-logs", "7.r1-logs", "7.r10-logs", "7.r9-logs"):
        (tmp_path / name).mkdir()
    assert run_folder("7", {"BASE_LOG_DIR": str(tmp_path)}).name == "7.r10-logs"
    assert run_folder("7.r1", {"BASE_LOG_DIR": str(tmp_path)}).name == "7.r1-logs"


def test_an_unknown_job_names_the_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        UsageError,
        match=rf"no run folder for job 12: .*; tried /base/12-logs, {tmp_path}/12-logs. Set BASE_LOG_DIR",
    ):
        run_folder("12", {"BASE_LOG_DIR": "/base"})
    with pytest.raises(UsageError, match=r"'\.\./x y' is neither a folder nor a job id"):
        run_folder("../x y", {})


def test_names_cannot_drive_a_terminal():
    assert printable("a\x1b[31m\n\udcff") == "a�[31m��"


def test_words_of_the_table():
    assert [
        steps_text(*steps) for steps in ((3, 5, None), (7, 8, "train"), (3, None, None), (None, None, None))
    ] == ["3:5", "7/train", "3:", "?"]


def test_watch_says_what_arrives_and_returns_when_the_job_has_ended(job):
    job.write(end={"cause": "running"})
    said, turns = [], []

    def sleep(seconds):
        turns.append(seconds)
        if len(turns) == 1:
            job.report("torch", "policy_worker", 0, 7, 8)
        else:
            job.write(end={"cause": "driver_exit"})

    watch_job(job.root, every_s=5, say=said.append, sleep=sleep)
    assert [line.split(" ", 1)[1] for line in said] == [
        "ok: torch/policy_worker/rank0/step3-4",
        "2 captures planned: 1 ok, 1 to come",
        "ok: torch/policy_worker/rank0/step7-7",
        "2 captures planned: 2 ok",
    ]


def test_archives_hold_each_nodes_files_and_unpack_below_their_folder(job, tmp_path):
    job.file("ray/n2/session_1/logs/raylet.out", b"log")
    job.file("nodes/-x/events/y.jsonl", b"")
    done = call(
        [sys.executable, "-m", "rlprof_ops", "harvest", str(job.root), "--archive"],
        tmp_path,
        PYTHONPATH=str(HOME / "python"),
    )
    assert done.returncode == 3 and "archives/n1.tar.zst (" in done.stdout, done.stderr
    held = {}
    for path in (job.root / "archives").iterdir():
        packed = subprocess.run(["zstd", "-dc", str(path)], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            held[path.name] = set(tar.getnames())
    report = str(job.place("torch", "policy_worker", 0, 3, 5, None, "n1", 100))
    assert held["n1.tar.zst"] >= {report, "nodes/n1.json", "manifest.json", "run.json"}
    assert "ray/n2/session_1/logs/raylet.out" in held["n2.tar.zst"] and report not in held["n2.tar.zst"]
    assert held["unknown-node.tar.zst"] >= {"nodes/-x/events/y.jsonl"}
