"""RayJob without Slurm: submitit's local and debug executors, and a plain call."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rlprof_ops import HarvestRun, RayJob, ReportRun, wait_for
from tests.submitit_job.jobs import ASKED, CAPTURES, QUICK, TRAINER, say
from tests.waits import wait_until

submitit = pytest.importorskip("submitit")
pytestmark = [pytest.mark.ray, pytest.mark.whole, pytest.mark.timeout(900)]


def test_local_with_follow_ups(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RLPROF_STEPS", "99")  # a shell's own wishes are not the job's
    monkeypatch.setenv("COMMAND", "false")
    executor = submitit.AutoExecutor(folder=tmp_path, cluster="local")
    executor.update_parameters(timeout_min=10, tasks_per_node=1)
    job = executor.submit(RayJob(TRAINER, ASKED, QUICK))
    summary = wait_for(job, progress=True)

    assert (summary.exit_code, summary.cause) == (0, "driver_exit"), say(tmp_path)
    said = capsys.readouterr().err
    assert "running, 1 of 1 nodes up" in said and "2 of 2 captures" in said, said
    where = summary.report or summary.run_dir
    assert repr(summary) == f"RunSummary(exit code 0, 2 of 2 captures, {where})"
    assert summary.ok and summary.captures() == dict.fromkeys(CAPTURES, "ok"), say(tmp_path)
    assert summary.run_dir == str(tmp_path / f"local-{job.job_id}-logs")

    manifest = executor.submit(HarvestRun.of(job)).result()
    assert manifest.coverage == summary.manifest.coverage
    assert ReportRun.of(job).folder == summary.run_dir


def test_debug_shows_the_commands_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    executor = submitit.AutoExecutor(folder=tmp_path, cluster="debug")
    summary = executor.submit(RayJob("exit 7", settings=QUICK)).result()
    assert (summary.exit_code, summary.cause, summary.ok) == (7, "driver_exit", False), say(tmp_path)


def test_local_requeue_takes_the_rest(tmp_path):
    """submitit's signal after the first window: the second start captures the second window alone."""
    executor = submitit.AutoExecutor(folder=tmp_path, cluster="local")
    executor.update_parameters(timeout_min=10, tasks_per_node=1)
    stuck = tmp_path / "stuck"
    trainer = [*TRAINER, "--stuck-once", str(stuck)]
    job = executor.submit(RayJob(trainer, ASKED, QUICK, requeue=True))
    first = tmp_path / f"local-{job.job_id}-logs"
    window = "profiles/memory/policy_worker/rank0/*step2-2*"
    wait_until(
        lambda: stuck.exists() and list(first.glob(window)),
        240,
        lambda: say(tmp_path),
        pause_s=0.2,
        unless=job.done,
    )
    [task] = Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text().split()
    os.kill(int(task), signal.SIGUSR2)  # as submitit's local controller does near the time limit
    summary = job.result()

    assert summary.exit_code == 0, say(tmp_path)
    assert summary.earlier == (str(first),)
    assert [capture.id for capture in summary.manifest.captures] == ["memory/policy_worker/rank0/step4-5"]
    assert summary.captures() == dict.fromkeys(CAPTURES, "ok"), say(tmp_path)
