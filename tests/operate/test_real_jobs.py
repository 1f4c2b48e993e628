"""A new user at a login node of a real Slurm, with an installed rlprof: the story of docs/tutorial.md, which
has its transcript.

RLPROF_TRANSCRIPT=docs/tutorial.md pytest tests/operate/test_real_jobs.py   puts this run's transcript into the document.
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.operate.login import Login, in_document, put_into, shape
from tests.packaging.conftest import run, wheel

__all__ = ["wheel"]  # a fixture

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.nsys,
    pytest.mark.ray,
    pytest.mark.torch,
    pytest.mark.timeout(700),
]
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
REQUEST = """\
captures:
  - backend: nsight
    workers: policy_worker
    steps: 3:5,7
    options: {t: nvtx}
  - backend: torch
    workers: generation_worker
    steps: 3:5
"""
LATER = REQUEST.replace("3:5,7", "3:5,30")
DEMO = ("python", "-m", "rlprof_ops.demo", "--steps")
WORLD = ("--world", "policy_worker=2,generation_worker=1")


@pytest.fixture
def user(slurm, wheel):
    """A new user: an empty folder on shared storage, and a virtual environment with Ray and the wheel."""
    place = slurm.shared / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        place / "bin/python",
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        wheel,
    )
    packages = next((place / "lib").glob("python*/site-packages"))
    (packages / "tests.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )  # Ray and the rest, from where the tests have them
    (place / "bin" / "ray").symlink_to(Path(sysconfig.get_path("scripts")) / "ray")
    me = Login(
        slurm, slurm.shared / "me", f"{place}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", ["rlprof"]
    )
    me.env["HOME"] = str(me.folder)
    return me


def test_a_new_users_first_day(slurm, user):
    me = user
    assert "nsys capture" in me.type("doctor", "--nodes", "3", "--shared", ".", timeout=200)
    me.type("init", "project")
    (me.folder / "profile.yaml").write_text(REQUEST)
    me.type("plan", "profile.yaml", *WORLD)
    me.env |= {
        "LEFT_OVER": "1",
        "NRL_NSYS_WORKER_PATTERNS": "left over",
        "SEED": "7",
    }  # of which a job gets what it is given
    common = (
        "-N",
        "3",
        "--gres=gpu:2",
        "--request",
        "profile.yaml",
        *WORLD,
        "--set",
        "RAY_LOG_SYNC_FREQUENCY=2",
    )
    first = me.type("submit", *common, "--wait", "--", *DEMO, "8", timeout=240)
    assert "5 captures planned: 5 ok" in first
    assert re.search(r"(?m)^report: .*/\d+-logs/report.html$", first)

    (me.folder / "profile.yaml").write_text(LATER)
    long = ("bash", "-c", "env > env.txt; python -m rlprof_ops.demo --steps 60 --step-seconds 2")
    shown = me.type("submit", "--dry-run", *common, "--set", "SEED", "--", *long, show=False)
    assert "sbatch --parsable --export=ALL --job-name=rlprof -N 3 --gres=gpu:2" in shown
    me.type("submit", *common, "--set", "SEED", "--", *long)
    job = str(max(int(row["job"]) for row in json.loads(me.type("ps", "--json", show=False))))
    following = me.start("logs", "-f", job, cwd=Path("/"))
    try:
        stopped = step_in(me, job)
    except BaseException:
        slurm.run(["scancel", "--signal=KILL", job], check=False)
        raise
    finally:
        log, _ = following.communicate(timeout=60)
    assert following.returncode == 0 and "step   5" in log
    assert "5 captures planned: 3 ok, 2 missing" in stopped
    me.note(("logs", "-f", job), first_and_last_steps(log))
    me.type("status", job, code=3, cwd=Path("/"))

    again = me.type("retry", job, "--wait", "--", *DEMO, "30", cwd=Path("/"), timeout=400)
    assert "2 captures planned: 2 ok" in again and "reports: 2 " in again
    assert me.type("ps", "--all").count("-logs") == 3
    assert me.used() == "", "sacct, rsync or enroot were asked for"
    assert [line for node in slurm.nodes for line in slurm.processes(node)] == []
    compare_with_tutorial(me)


def step_in(me: Login, job: str) -> str:
    """Look at a running job, enter it, take a window that nobody planned, stop it; what `stop` said."""
    me.until(job, lambda view: view["captures"]["done"] == 3 and view["step"] >= 6)
    me.type("ps")
    assert "3 of 5 captures" in me.type("status", job, cwd=Path("/"))
    assert me.type("attach", job, "n2", "--", "hostname", cwd=Path("/")).strip().endswith("n2")
    assert "Active" in me.type("attach", job, "--", "ray", "status", show=False)
    me.type("attach", job, "--", "bash", "-c", "exit 5", code=5, show=False)
    me.type("attach", job, "n9", code=2, show=False)
    me.type("capture", job, "--workers", "policy_worker", "--ranks", "0", "--seconds", "3", cwd=Path("/"))
    assert "step   1" in me.type("logs", job, show=False)
    assert "3 of 3 nodes are up" in me.type("logs", job, "--node", "n1", show=False)
    assert "driver runs" in me.type("logs", job, "--job-output", show=False)
    me.type("dashboard", job, code=2, show=False)
    env = (me.folder / "env.txt").read_text().splitlines()
    assert "SEED=7" in env and not [line for line in env if line.startswith(("LEFT_OVER=", "NRL_"))]
    return me.type("stop", job, code=3, cwd=Path("/"))


def first_and_last_steps(log: str) -> str:
    lines = [line for line in log.splitlines() if line.startswith("step ")]
    return "\n".join([*lines[:3], "…"])


def compare_with_tutorial(me: Login) -> None:
    """The tutorial tells this story: the same commands, the same captures, the same exit codes."""
    text = me.transcript((str(me.sandbox.shared / "venv"), "/shared/venv"))
    if target := os.environ.get("RLPROF_TRANSCRIPT"):
        put_into(Path(target), text)
    assert shape(text) == shape(in_document(TUTORIAL))


def test_a_sites_defaults_reach_slurm(slurm):
    me = Login(slurm, slurm.shared / "my project")
    me.env["PYTHONPATH"] = str(Path(__file__).parents[2] / "python")
    site = slurm.shared / "site.env"
    site.write_text(
        'SBATCH_JOB_NAME=a | b $c = "d"\nSBATCH_TIMELIMIT=30\nRLPROF_SBATCH_ARGS=--comment=\'{"reaper":'
        f' {{"exempt": "60 min"}}}}\' -N1\nBASE_LOG_DIR={slurm.shared}/runs of all\n'
    )
    me.env |= {"RLPROF_SITE_ENV": str(site), "SBATCH_TIMELIMIT": "99", "SBATCH_PARTITION": "moon"}
    said = json.loads(me.type("submit", "--json", "--hold", "--time=10", "--", "true").splitlines()[-1])
    fields = slurm.run(["scontrol", "show", "job", said["job"]]).stdout

    assert "TimeLimit=00:10:00" in fields and "NumNodes=1" in fields
    assert 'Comment={"reaper": {"exempt": "60 min"}}' in fields
    view = me.status(said["job"])
    assert (view["state"], view["reason"], view["name"]) == ("waiting", "JobHeldUser", 'a | b $c = "d"')
    assert view["run_dir"] == f"{slurm.shared}/runs of all/{said['job']}-logs"
    assert [job["name"] for job in json.loads(me.type("ps", "--json", cwd=Path("/")))] == ['a | b $c = "d"']
    assert "is cancelled" in me.type("stop", said["job"], cwd=Path("/"))
    assert me.status(said["job"])["exit_code"] == 143
    me.type("submit", "--partition=moon", "--", "true", code=1)
    assert "Did you mean --partition?" in me.type("submit", "--partiton=x", "--", "true", code=2)
