"""What ray.sub does in bash and `RayJob` and the demo in Python: the same folder, the same token, the same
variables. Both sides run.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from rlprof_ops.job import attempt
from rlprof_ops.job.folders import RunFolder, job_name
from rlprof_ops.job.supervisor_env import HeadAddress, supervisor_env

HOME = Path(__file__).parents[2]
# ray.sub's own steps, with stand-ins for what asks Slurm.
BASH = f"""
set -euo pipefail
source {HOME}/scripts/lib/common.sh
source {HOME}/scripts/lib/slurm.sh
source {HOME}/scripts/lib/job.sh
slurm::record_run_folder() {{ :; }}
slurm::free_ports() {{ printf '20001 20002\\n'; }}
slurm::address() {{ printf '10.0.0.%s\\n' "${{#1}}"; }}
scontrol() {{
    if [[ "$*" == "show hostnames"* ]]; then printf 'n1\\nn2\\n'; else printf 'KillWait = 30 sec\\n'; fi
}}
umask "$MASK"
PORT=0 RLPROF_CONTROL_PORT=0
job::run_folder 2> /dev/null
job::addresses
job::earlier_attempts
env -0
"""


def by_bash(base: Path, mask: str, **more: str) -> dict[str, str]:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(base),
        "MASK": mask,
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_SUBMIT_DIR": str(base),
        "BASE_LOG_DIR": str(base),
        **more,
    }
    done = subprocess.run(["bash", "-c", BASH], env=env, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr.decode()
    pairs = (line.partition("=") for line in done.stdout.decode().split("\0") if "=" in line)
    return {name: value for name, _, value in pairs if name.startswith("RLPROF_")}


def by_python(base: Path, mask: int, job: str) -> tuple[RunFolder, dict[str, str]]:
    run = RunFolder(base / f"{job}-logs")
    before = os.umask(mask)
    try:
        run.create()
        run.write_token()
    finally:
        os.umask(before)
    return run, supervisor_env(job, run, "n1", ["n1", "n2"], HeadAddress("10.0.0.2", 20001, 20002))


def modes(folder: Path) -> dict[str, str]:
    """Of what both make; the head's supervisor makes the rest of ray.sub's."""
    names = (".", "logs", "control", ".secrets", ".secrets/ray_token")
    return {name: oct(stat.S_IMODE((folder / name).lstat().st_mode)) for name in names}


@pytest.mark.parametrize("mask", ["0022", "0077", "0000"])
def test_the_run_folder_and_its_token_are_alike(tmp_path, mask):
    bash = Path(by_bash(tmp_path / "bash", mask)["RLPROF_RUN_DIR"])
    run, _ = by_python(tmp_path / "python", int(mask, 8), "4711")

    assert bash.name == run.path.name == "4711-logs"
    assert modes(bash) == modes(run.path)
    for token in (bash / ".secrets/ray_token", run.token):
        assert re.fullmatch(r"[0-9a-f]{64}", token.read_text())
    assert RunFolder(bash).read_token() != run.read_token()


def test_the_supervisor_is_told_the_same(tmp_path):
    bash = by_bash(tmp_path / "bash", "0022")
    _, python = by_python(tmp_path / "bash" / "python", 0o022, "4711")
    # ray.sub itself, node.sh, Slurm's own of the node; a job outside Slurm has no KillWait.
    elsewhere = {"RLPROF_BEGAN", "RLPROF_NODE", "RLPROF_KILL_WAIT"}

    assert python.keys() - elsewhere == bash.keys() - elsewhere
    assert {**bash, "RLPROF_RUN_DIR": "", "RLPROF_KILL_WAIT": ""} == {
        **{name: value for name, value in python.items() if name not in elsewhere},
        "RLPROF_RUN_DIR": "",
        "RLPROF_KILL_WAIT": "",
    }


@pytest.mark.parametrize("restarts, name", [("0", "4711"), ("2", "4711.r2")])
def test_an_attempt_has_the_same_name(tmp_path, restarts, name):
    env = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": restarts}

    assert by_bash(tmp_path, "0022", SLURM_RESTART_COUNT=restarts)["RLPROF_JOB"] == name
    assert job_name(env) == attempt.name("4711", int(restarts)) == name


def test_earlier_attempts_are_those_with_a_manifest_that_nobody_else_can_have_written(tmp_path):
    folders = {name: tmp_path / f"{name}-logs" for name in ("4711", "4711.r1", "4711.r2", "4711.r3")}
    for folder in folders.values():
        folder.mkdir()
        for name in ("run.json", "manifest.json"):
            (folder / name).write_text("{}")
    (folders["4711.r1"] / "run.json").unlink()  # of a start that was refused
    folders["4711.r2"].chmod(0o777)

    told = by_bash(tmp_path, "0022", SLURM_RESTART_COUNT="4")
    assert (told["RLPROF_JOB"], told["RLPROF_EARLIER_ATTEMPTS"]) == ("4711.r4", "0 3")
    run = RunFolder(tmp_path / "4711.r5-logs")
    env = supervisor_env("4711.r5", run, "n1", ["n1"], HeadAddress("10.0.0.2", 1, 2), [0, 3])
    assert env["RLPROF_EARLIER_ATTEMPTS"] == "0 3"
