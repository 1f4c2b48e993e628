"""A new user at a login node of a real Slurm, with an installed rlprof: the story of docs/tutorial.md, which
has its transcript.

RLPROF_TRANSCRIPT=docs/tutorial.md pytest tests/operate/test_real_jobs.py   puts this run's transcript into the document.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.needs import need
from tests.operate.login import MARK, Login, in_document, put_into, shape

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.nsys,
    pytest.mark.ray,
    pytest.mark.torch,
    pytest.mark.timeout(1200),
]
HOME = Path(__file__).parents[2]
TUTORIAL = HOME / "docs" / "tutorial.md"
DEMO = ("python", "-m", "rlprof_ops.demo", "--steps")
WORLD = ("--world", "policy_worker=2,generation_worker=1")


def blocks(language: str) -> list[str]:
    """The blocks of the tutorial that stand before its session."""
    before = TUTORIAL.read_text().partition(MARK)[0]
    return re.findall(rf"(?s)```{language}\n(.*?)```", before)


@pytest.fixture
def user(slurm):
    """A new user who has typed the tutorial's first block, line by line, and written its profile.yaml.

    `/shared` is the sandbox's; its virtual environment lies on a disk that the nodes see too, since the
    sandbox's shared folder is memory.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rlprof-tutorial-") as disk:
        copy_checkout(slurm.shared / "rlprof-ops")
        places = [("/shared/venv", f"{disk}/venv"), ("/shared", str(slurm.shared))]
        (setup,) = blocks("bash")
        for shown, real in places:
            setup = setup.replace(shown, real) if shown != "/shared" else re.sub(r"/shared\b", real, setup)
        path = f"{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        env = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))}
        env |= {"PATH": path, "HOME": disk, "PIP_RETRIES": "1", "PIP_DEFAULT_TIMEOUT": "30"}
        for config in (Path.home() / ".config/pip/pip.conf", Path.home() / ".pip/pip.conf"):
            if config.is_file():
                env.setdefault("PIP_CONFIG_FILE", str(config))
        done = subprocess.run(
            ["bash", "-e"], input=f"{setup}\npwd\necho \"$PATH\"\n", env=env, capture_output=True, text=True,
            timeout=500, check=False,
        )  # fmt: skip
        if done.returncode and re.search(r"No matching distribution|connection|resolve", done.stderr, re.I):
            need("index")
        assert done.returncode == 0, done.stderr
        here, path = done.stdout.splitlines()[-2:]
        me = Login(slurm, Path(here), path, ["rlprof"])
        me.env["HOME"] = here
        (Path(here) / "profile.yaml").write_text(blocks("yaml")[0])
        me.venv = f"{disk}/venv"
        yield me


def copy_checkout(target: Path) -> None:
    """The files that git knows, as a clone has them."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=HOME, capture_output=True, check=True).stdout
    for name in names.decode().split("\0"):
        if name and (HOME / name).is_file() and not name.startswith("tests/"):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(HOME / name, target / name)


@pytest.mark.long  # nine minutes of a sandbox: `make test-all` runs it
def test_a_new_users_first_day(slurm, user):
    me = user
    versions = json.loads(me.type("--version", "--json", show=False))
    assert versions["nvtx"] == "0.2.10", "nsys 2023.4 records nothing of later ones"
    assert "nsys capture" in me.type("doctor", "--nodes", "3", "--shared", ".", timeout=200)
    me.type("init", "project")
    me.type("plan", "profile.yaml", *WORLD)
    # Of which a job gets what it is given.
    me.env |= {"LEFT_OVER": "1", "NRL_NSYS_WORKER_PATTERNS": "left over"}
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

    me.shell("sed -i 's/3:5,7/3:5,30/' profile.yaml")
    me.shell("export SEED=7")
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
    # Slurm still knows other tests' jobs of this user; those of this story lie in its own folder.
    assert len(re.findall(r"/me/\d+-logs", me.type("ps", "--all"))) == 3
    assert me.used() == "", "sacct, rsync or enroot were asked for"
    assert [line for node in slurm.nodes for line in slurm.processes(node)] == []
    compare_with_tutorial(me)


def step_in(me: Login, job: str) -> str:
    """Look at a running job, enter it, take a window that nobody planned, stop it; what `stop` said."""
    me.until(job, lambda view: view["captures"]["done"] == 3 and view["step"] >= 6)
    me.type("ps")
    assert "3 of 5" in me.type("status", job, cwd=Path("/"))
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
    text = me.transcript((me.venv, "/shared/venv"))
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
