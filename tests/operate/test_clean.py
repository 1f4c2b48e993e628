"""`rlprof clean`: removes what is mine, old and of no running job, after a question; nothing else."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlprof_ops.collect.sync.sent_log import Sent, SentLog
from rlprof_ops.job import job_history
from tests.operate.test_submit import run

DAY = 86400


def old_run(base: Path, job: str, days: float) -> Path:
    folder = base / f"{job}-logs"
    report = folder / "profiles" / "torch" / "w" / "rank0" / "a.pt.trace.json.gz"
    report.parent.mkdir(parents=True)
    report.write_bytes(b"0" * 1000)
    (report.parent / f".{report.name}.columns.parquet").write_bytes(b"0" * 500)
    (folder / "run.json").write_text(json.dumps({"job": job}))
    then = time.time() - days * DAY
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (then, then))
    return folder


@pytest.fixture
def base(fake, tmp_path, monkeypatch):
    base = tmp_path / "runs"
    base.mkdir()
    monkeypatch.setenv("BASE_LOG_DIR", str(base))
    return base


def test_only_what_is_old_and_ended_goes(fake, base, capsys, tmp_path):
    old, young, running = old_run(base, "10", 40), old_run(base, "11", 5), old_run(base, "12", 50)
    second = old_run(base, "10.r1", 40)
    other = base / "notes-logs"
    other.mkdir()
    elsewhere = old_run(tmp_path, "9", 90)
    (base / "8-logs").symlink_to(elsewhere)
    job_history.remember(job_history.Remembered("10", str(old), "x", 1))
    job_history.remember(job_history.Remembered("11", str(young), "x", 1))
    row = [
        "12",
        "RUNNING",
        "1:02",
        "4:00:00",
        "2",
        "n1",
        "None",
        "x",
        "/w",
        "/opt/rlprof/ray.sub",
        "(null)",
        "12",
    ]
    (fake.folder / "queue").write_text("\x1f".join(row) + "\n")
    assert run("clean", "--dry-run") == 0
    said = capsys.readouterr().out
    assert f" 40.0 d    1.5 KiB  run folder       {old}" in said and str(second) in said
    assert str(young) not in said and str(running) not in said and str(elsewhere) not in said
    assert run("clean") == 2
    assert "nothing was removed" in capsys.readouterr().err and old.exists()
    assert run("clean", "--yes") == 0
    assert not old.exists() and not second.exists()
    assert young.exists() and running.exists() and other.exists() and elsewhere.exists()
    assert [known.job for known in job_history.recall()] == ["11"]


def test_an_element_of_an_array_is_running_by_both_of_its_numbers(fake, base, root):
    """Plain sbatch names its folders by the number of the job, submitit by those of array and element."""
    row = ["RUNNING", "1:02", "4:00:00", "2", "n1", "None", "x", "/w", "/opt/rlprof/ray.sub", "(null)"]
    rows = [["12_3", *row, "15"], ["12_[4-9%2]", "PENDING", *row[1:], "12"], ["20+0", *row, "20"]]
    (fake.folder / "queue").write_text("".join("\x1f".join(each) + "\n" for each in rows))
    jobs = ("12", "12_3", "15", "15.r1", "20")
    folders = [old_run(base, job, 40) for job in jobs]
    nodes = [killed_on_this_node(root, job) for job in jobs]
    for node in nodes:
        came_home(node)
    ended = old_run(base, "14", 40)

    assert run("clean", "--yes", "--older-than", "0h") == 0

    assert all(folder.exists() for folder in (*folders, *nodes)) and not ended.exists()


def test_caches_alone(base, capsys):
    old = old_run(base, "10", 40)
    assert run("clean", "--caches", "--yes", "--older-than", "4w") == 0
    assert "500 B  cache" in capsys.readouterr().out
    assert [path.name for path in old.rglob("*.parquet")] == []
    assert len(list(old.rglob("*.json.gz"))) == 1


def test_another_users_folder_is_not_mine(base, monkeypatch, capsys):
    old_run(base, "10", 40)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert run("clean", "--yes") == 0
    assert "nothing of yours is older than 30d" in capsys.readouterr().out


def test_an_age_is_a_number_with_a_unit(base, capsys):
    assert run("clean", "--older-than", "30") == 2
    assert "--older-than is '30': expected a number with h, d or w, e.g. 30d" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "left"), [(b"y\n", False), (b"n\n", True), (b"\n", True)])
def test_a_person_is_asked(base, answer, left):
    old = old_run(base, "10", 40)
    master, slave = pty.openpty()
    os.write(master, answer)
    subprocess.run(
        [sys.executable, "-m", "rlprof_ops", "clean"],
        stdin=slave,
        capture_output=True,
        timeout=60,
        check=False,
    )
    os.close(master), os.close(slave)
    assert old.exists() is left


def killed_on_this_node(root: Path, job: str, run: Path | None = None) -> Path:
    """A node folder without processes, a report in it that was not copied."""
    folder = root / f"rlprof-{os.getuid()}-{job}"
    (folder / "profiles").mkdir(parents=True)
    (folder / "profiles" / "a.nsys-rep").write_bytes(b"0" * 100)
    (folder / "job").write_text(f"{run}\n1.5\n")
    return folder


def came_home(folder: Path) -> None:
    found = (folder / "profiles" / "a.nsys-rep").stat()
    log = SentLog(folder / "sync" / "state.jsonl")
    log.add("profiles/a.nsys-rep", Sent("x", found.st_size, found.st_mtime_ns, found.st_ino, "0"))
    log.close()


@pytest.fixture
def root(base, tmp_path, monkeypatch):
    monkeypatch.setenv("RLPROF_NODE_ROOT", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


@pytest.mark.parametrize("job", ["4711", "4711.r1", "4711_3", "4711~2", "local-17-4"])
def test_folders_of_killed_jobs_are_found_where_the_shell_says(root, job, capsys):
    folder = killed_on_this_node(root, job)
    came_home(folder)
    somebody = root / f"rlprof-{os.getuid()}-notes"
    somebody.mkdir()

    assert run("clean", "--yes", "--older-than", "0h") == 0

    assert f"node folder      {folder}\n" in capsys.readouterr().out
    assert not folder.exists() and somebody.exists()


@pytest.mark.parametrize(
    "kept",
    [
        "profiles/a.nsys-rep",
        "keep/n1.json",
        "tmp/a.qdstrm",
        "inplace/rocprof_sys/w/rank0/w_rank0_n1_7_perfetto-trace.proto",
        "ray/session_1/logs/rocprof_sys/worker_process_7perfetto-trace-7.proto",
        "inplace/memory/w/rank0/w.pickle",
    ],
)
def test_the_only_copy_of_reports_is_left_alone_unless_it_is_asked_for(root, kept, capsys):
    folder = killed_on_this_node(root, "4711")
    if kept != "profiles/a.nsys-rep":
        came_home(folder)
        (folder / kept).parent.mkdir(parents=True)
        (folder / kept).write_text("{}")

    assert run("clean", "--yes", "--older-than", "0h") == 0
    said = capsys.readouterr()
    assert (
        f"left alone: {folder}: its reports were not copied home and are nowhere else. The job's output has"
        " the command that brings them to the run folder; --uncopied removes them" in said.err
    )
    assert "nothing of yours is older than 0h" in said.out and folder.exists()

    assert run("clean", "--yes", "--older-than", "0h", "--uncopied") == 0
    assert f"not copied home  {folder}\n" in capsys.readouterr().out and not folder.exists()


def a_process_of(job: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "100"], env={**os.environ, "RLPROF_JOB": job})


def test_what_has_a_process_on_this_machine_is_left_alone(root, base, capsys):
    folder, mine = killed_on_this_node(root, "local-17-4"), old_run(base, "local-17-4", 40)
    came_home(folder)
    record = {"job": "local-17-4", "head": socket.gethostname(), "end": {"cause": "running"}}
    (mine / "run.json").write_text(json.dumps(record))
    with a_process_of("local-17-4") as process:
        assert run("clean", "--yes", "--older-than", "0h") == 0
        process.kill()
    assert folder.exists() and mine.exists()
    assert "nothing of yours is older than 0h" in capsys.readouterr().out

    assert run("clean", "--yes", "--older-than", "0h") == 0
    assert not folder.exists() and not mine.exists()


def begun(folder: Path, host: str, pid: int) -> None:
    """What `rlprof wrap` on `host` has written of a program that runs."""
    noted = {f"{host}:{pid}": {"started_ns": 1, "exit_code": None}}
    record = {"job": folder.name[:-5], "head": host, "end": {"cause": "running"}, "processes": noted}
    (folder / "run.json").write_text(json.dumps(record))


def test_a_run_without_slurm_is_known_by_its_run_json(base, capsys):
    here, there, killed = (old_run(base, f"local-{n}-1", 0) for n in (1, 2, 3))
    with subprocess.Popen(["true"]) as ended:
        pass
    begun(here, socket.gethostname(), os.getpid())
    begun(there, "n77", 17)
    begun(killed, socket.gethostname(), ended.pid)

    assert run("clean", "--yes", "--older-than", "0h") == 0

    assert here.exists() and there.exists() and not killed.exists()
    told = capsys.readouterr().err
    assert told == f"left alone: {there}: whether it runs is not known here: it began on n77\n"


def test_without_squeue_what_has_not_said_that_it_ended_is_left_alone(root, base, monkeypatch, capsys):
    ended, unknown = old_run(base, "10", 40), old_run(base, "11", 40)
    (ended / "run.json").write_text(json.dumps({"job": "10", "end": {"cause": "driver_exit"}}))
    folders = [killed_on_this_node(root, job, base / f"{job}-logs") for job in ("10", "11")]
    for folder in folders:
        came_home(folder)
    monkeypatch.setenv("PATH", "/nowhere")

    assert run("clean", "--yes", "--older-than", "0h") == 0

    assert [path.exists() for path in (ended, unknown, *folders)] == [False, True, False, True]
    why = "whether it waits or runs is not known here: squeue is not on PATH"
    assert f"left alone: {unknown}: {why}\n" in capsys.readouterr().err
