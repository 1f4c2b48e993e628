"""One session at a login node of a real Slurm: submit, watch, enter, stop, retry. Writes the transcript of docs/operate.md.

RLPROF_TRANSCRIPT=docs/operate.md pytest tests/operate/test_real_jobs.py   puts this run's transcript into the document.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.nsys, pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(700)]

REQUEST = """\
captures:
  - workers: policy_worker,generation_worker
    steps: 3:5,7
    options: {t: nvtx}
"""
DEMO = ("python", "-m", "rlprof_ops.demo", "--steps", "8")
# A trainer that dies between its two windows, in a job that goes on until somebody stops it.
HANGS = ("bash", "-c", "env > env.txt; python -m rlprof_ops.demo --steps 8 --fail-at-step 6; sleep 600")
MARK = "<!-- transcript -->"


class Login:
    """A person at the login node, in an own folder, without sacct, pyxis and rsync. Keeps what was typed and said."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.folder = sandbox.shared / "my project"
        self.folder.mkdir(exist_ok=True)
        (self.folder / "profile.yaml").write_text(REQUEST)
        tools = sandbox.shared / "tools"
        tools.mkdir(exist_ok=True)
        for name in ("sacct", "rsync", "enroot"):
            (tools / name).write_text(f"#!/bin/sh\necho {name} >> {sandbox.shared}/used\nexit 127\n")
            (tools / name).chmod(0o755)
        self.env = {
            "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2] / "python"),
            "XDG_STATE_HOME": str(sandbox.shared / "state"), "LEFT_OVER": "1", "NRL_NSYS_WORKER_PATTERNS": "left over", "SEED": "7",
        }  # fmt: skip
        self.text: list[str] = []

    def start(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "rlprof_ops", *words]
        return self.sandbox.popen("login", argv, env=self.env, cwd=cwd or self.folder, text=True, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    def type(self, *words: str, cwd: Path | None = None, code: int = 0, show: bool = True, timeout: float = 120) -> str:
        """Run one command to its end, hold it to its exit code, and give what it said."""
        process = self.start(*words, cwd=cwd)
        out, _ = process.communicate(timeout=timeout)
        assert process.returncode == code, out
        if show:
            self.note(words, out, code)
        return out

    def note(self, words: tuple[str, ...], out: str, code: int = 0) -> None:
        line = " ".join(f"'{word}'" if " " in word or ";" in word else word for word in words)
        self.text.append(f"$ rlprof {line}\n{out.rstrip()}\n" + (f"(exit code {code})\n" if code else ""))

    def status(self, job: str) -> dict[str, Any]:
        process = self.start("status", job, "--json", cwd=Path("/"))
        out, _ = process.communicate(timeout=60)
        found: dict[str, Any] = json.loads(out)
        return found

    def until(self, job: str, what: Any, seconds: float = 200) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while not what(view := self.status(job)):
            assert time.monotonic() < deadline, view
            assert view["state"] != "ended", view
            time.sleep(1)
        return view


def test_a_session_at_the_login_node(slurm):
    me = Login(slurm)
    submit = ("submit", "-N", "3", "--gres=gpu:2", "--request", "profile.yaml", "--world", "policy_worker=2,generation_worker=1",
              "--set", "RAY_LOG_SYNC_FREQUENCY=2", "--set", f"RLPROF_VENV={sys.prefix}", "--set", "SEED", "--wait", "--")  # fmt: skip
    shown = me.type("submit", "--dry-run", *submit[1:], *HANGS, show=False)
    assert "sbatch --parsable --export=ALL --job-name=rlprof -N 3 --gres=gpu:2" in shown

    waiting = me.start(*submit, *HANGS)
    job = wait_for_job(me)
    following = me.start("logs", "-f", job, cwd=Path("/"))
    try:
        me.until(job, lambda view: view["captures"]["done"] == 3 and view["step"] == 6)
        me.type("ps")
        assert "3 of 6 captures" in me.type("status", job, cwd=Path("/"))
        assert me.type("attach", job, "n2", "--", "hostname", cwd=Path("/")).strip().endswith("n2")
        assert "Active" in me.type("attach", job, "--", "ray", "status", show=False)
        me.type("attach", job, "--", "bash", "-c", "exit 5", code=5, show=False)
        me.type("attach", job, "n9", code=2, show=False)
        assert "step   1" in me.type("logs", job, show=False)
        assert "3 of 3 nodes are up" in me.type("logs", job, "--node", "n1", show=False)
        assert "driver runs" in me.type("logs", job, "--job-output", show=False)
        me.type("dashboard", job, code=2, show=False)
        env = (me.folder / "env.txt").read_text().splitlines()
        assert "SEED=7" in env and not [line for line in env if line.startswith(("LEFT_OVER=", "NRL_"))]
        stopped = me.type("stop", job, code=3, cwd=Path("/"))
    except BaseException:
        slurm.run(["scancel", "--signal=KILL", job], check=False)
        raise
    finally:
        out, _ = waiting.communicate(timeout=120)
        log, _ = following.communicate(timeout=60)

    assert waiting.returncode == 143, out
    assert following.returncode == 0 and "step   5" in log
    assert "6 captures planned: 3 ok, 3 missing" in stopped and "6 captures planned: 3 ok, 3 missing" in out
    me.text.insert(0, "")
    me.note((*submit, *HANGS), out, 143)
    me.text[0] = me.text.pop()
    me.type("status", job, code=3, cwd=Path("/"))

    again = me.type("retry", job, "--wait", "--", *DEMO, cwd=Path("/"), timeout=400)
    assert "3 captures planned: 3 ok" in again
    assert "reports: 3 " in again
    assert me.type("ps", "--all").count("-logs") == 2
    assert not (slurm.shared / "used").exists(), (slurm.shared / "used").read_text()
    assert [line for node in slurm.nodes for line in slurm.processes(node)] == []
    write_transcript(me)


def test_a_sites_defaults_reach_slurm(slurm):
    me = Login(slurm)
    site = slurm.shared / "site.env"
    site.write_text(
        "SBATCH_JOB_NAME=a | b $c = \"d\"\nSBATCH_TIMELIMIT=30\nRLPROF_SBATCH_ARGS=--comment='{\"reaper\": {\"exempt\": \"60 min\"}}' -N1\n"
        f"BASE_LOG_DIR={slurm.shared}/runs of all\n"
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


def wait_for_job(me: Login) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        process = me.start("ps", "--json")
        out, _ = process.communicate(timeout=60)
        if jobs := json.loads(out):
            return str(jobs[-1]["job"])
        time.sleep(0.5)
    raise AssertionError("the job never came into the queue")


def write_transcript(me: Login) -> None:
    target = os.environ.get("RLPROF_TRANSCRIPT")
    if not target:
        return
    text = "\n".join(me.text)
    for real, shown in ((str(me.folder), "/shared/my project"), (str(me.sandbox.shared), "/shared"), (sys.prefix, "/shared/venv")):
        text = text.replace(real, shown)
    text = re.sub(r"(?m)^note: .*PYTHONPATH.*\n", "", text)
    document = Path(target)
    kept = document.read_text().partition(MARK)[0]
    document.write_text(f"{kept}{MARK}\n\n```console\n{text.rstrip()}\n```\n")
