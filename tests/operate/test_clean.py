"""`rlprof clean`: removes what is mine, old and of no running job, after a question; nothing else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
    row = ["12", "RUNNING", "1:02", "4:00:00", "2", "n1", "None", "x", "/w", "/opt/rlprof/ray.sub", "(null)"]
    (fake.folder / "queue").write_text("\x1f".join(row) + "\n")
    assert run("clean", "--dry-run") == 0
    said = capsys.readouterr().out
    assert f" 40.0 d    1.5 KiB  run folder   {old}" in said and str(second) in said
    assert str(young) not in said and str(running) not in said and str(elsewhere) not in said
    assert run("clean") == 2
    assert "nothing was removed" in capsys.readouterr().err and old.exists()
    assert run("clean", "--yes") == 0
    assert not old.exists() and not second.exists()
    assert young.exists() and running.exists() and other.exists() and elsewhere.exists()
    assert [known.job for known in job_history.recall()] == ["11"]


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
