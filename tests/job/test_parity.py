"""What ray.sub does in bash and `RayJob` and the demo in Python: the same folder, the same token, the same
variables, from the same files. Both sides run.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.job import attempt
from rlprof_ops.job.folders import RunFolder, job_name
from rlprof_ops.job.harvest_job import harvest_words
from rlprof_ops.job.knobs import filled
from rlprof_ops.job.supervisor_env import HeadAddress, supervisor_env
from rlprof_ops.slurm import client

HOME = Path(__file__).parents[2]
# ray.sub's own steps, with stand-ins for what asks Slurm.
BASH = f"""
set -euo pipefail
source {HOME}/scripts/lib/common.sh
source {HOME}/scripts/lib/slurm.sh
source {HOME}/scripts/lib/harvest_job.sh
source {HOME}/scripts/lib/job.sh
slurm::record_run_folder() {{ :; }}
slurm::free_ports() {{ printf '20001 20002\\n'; }}
slurm::address() {{ printf '10.0.0.%s\\n' "${{#1}}"; }}
scontrol() {{
    case "$*" in
        "show hostnames"*) printf 'n1\\nn2\\n' ;;
        "show node"*) printf '%s\\n' "${{SHOWN-}}" ;;
        *) printf '%s\\n' "${{CONFIG-}}" ;;
    esac
}}
umask "$MASK"
PORT=0 RLPROF_CONTROL_PORT=0 RLPROF_HARVEST_JOB=0 RLPROF_HARVEST_ARGS="" RLPROF_HARVEST_SECONDS=120
job::run_folder 2> /dev/null
job::addresses
job::who_harvests
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
    done = subprocess.run(["bash", "-c", BASH], env=env, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    pairs = (line.partition("=") for line in done.stdout.decode().split("\0") if "=" in line)
    return {name: value for name, _, value in pairs if name.startswith("RLPROF_")}


def by_python(base: Path, mask: int, job: str, **told: Any) -> tuple[RunFolder, dict[str, str]]:
    run = RunFolder(base / f"{job}-logs")
    before = os.umask(mask)
    try:
        run.create()
        run.write_token()
    finally:
        os.umask(before)
    return run, supervisor_env(job, run, "n1", ["n1", "n2"], HeadAddress("10.0.0.2", 20001, 20002), **told)


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


COUNTED = "NodeName=n1 Arch=x86_64\n   Gres=gpu:8(S:0-1)\n   CfgTRES=cpu=64,billing=64"
TYPED = "NodeName=n1\n   Gres=(null)\n   CfgTRES=cpu=64,gres/gpu:h100=8\n   AllocTRES="
NONE = "NodeName=n1\n   Gres=(null)\n   CfgTRES=cpu=64,mem=1M,billing=64\n   Comment=gpu node"


@pytest.mark.parametrize(("shown", "counts"), [(COUNTED, "1"), (TYPED, "1"), (NONE, "0"), ("", "0")])
def test_the_supervisor_is_told_the_same(tmp_path, monkeypatch, shown, counts):
    """Also where an environment that the job came with says otherwise of the GPUs."""
    config = (
        "Configuration data\nKillWait                = 33 sec\nKillOnBadExit           = 0" if shown else ""
    )
    bash = by_bash(tmp_path / "bash", "0022", SHOWN=shown, CONFIG=config, RLPROF_SLURM_COUNTS_GPUS="1")
    scontrol = tmp_path / "scontrol"
    answers = {"show node n1": shown, "show config": config}
    cases = "".join(f"  '{words}') cat <<'EOF'\n{said}\nEOF\n  ;;\n" for words, said in answers.items())
    scontrol.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    asked = client.counts_gpus("n1")
    _, python = by_python(
        tmp_path / "bash" / "python", 0o022, "4711", slurm_counts_gpus=asked, kill_wait=client.kill_wait()
    )
    assert python["RLPROF_SLURM_COUNTS_GPUS"] == counts
    assert python["RLPROF_KILL_WAIT"] == ("33" if shown else "")
    elsewhere = {"RLPROF_BEGAN", "RLPROF_NODE"}  # ray.sub itself, node.sh, Slurm's own of the node

    assert python.keys() - elsewhere == bash.keys() - elsewhere
    assert {**bash, "RLPROF_RUN_DIR": ""} == {
        **{name: value for name, value in python.items() if name not in elsewhere},
        "RLPROF_RUN_DIR": "",
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


# What a line may hold: nothing in it is quoted, expanded or run, and only a newline ends it.
SITE = """\
# NCCL_DEBUG=INFO
NCCL_IB_HCA=mlx5
NCCL_IB_HCA=of a second line
HTTPS_PROXY=http://me:pass@proxy:3128/?a=b
QUOTED="two  words" 'and more'
NEVER=$HOME `id` $(id) ${PATH}
BLANKS=  on both sides\x20\x20
BACKSLASH=a\\b\\
OTHER_ENDS=a\x0bb\x0cc\x1cd\u2028e\rf
FROM_WINDOWS=1\r
EMPTY=
 INDENTED=1
export EXPORTED=1
NO-NAME=1
=1
PORT=7000
RLPROF_TRAINER=nemo_rl_megatron
OMP_NUM_THREADS=4
BASE_LOG_DIR=/lustre/me
SBATCH_PARTITION=gpu
RLPROF_HARVEST_JOB=auto
RLPROF_INTERFACE=ib0
LAST=without a newline"""


def with_files_by_bash(env: dict[str, str]) -> dict[str, str]:
    libraries = "; ".join(f"source {HOME}/scripts/lib/{name}.sh" for name in ("common", "knobs"))
    script = f"set -euo pipefail; {libraries}; knobs::load {HOME} 2> /dev/null; env -0"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=120, check=True)
    pairs = (line.partition("=") for line in os.fsdecode(done.stdout).split("\0") if line)
    return {name: value for name, _, value in pairs if name not in ("PWD", "SHLVL", "_", "OLDPWD")}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"NCCL_IB_HCA": "mine", "PORT": "7001", "HTTPS_PROXY": "", "OMP_NUM_THREADS": ""},
        {"RLPROF_TRAINER": "nemo_rl"},
        {"RLPROF_TRAINER": ""},
        {"RLPROF_SITE_ENV": ""},
        {"RLPROF_SITE_ENV": "", "RLPROF_TRAINER": "nemo_rl", "RAY_event_stats": "true"},
    ],
)
def test_files_of_site_and_trainer_fill_the_environment_alike(tmp_path, more):
    (tmp_path / "site.env").write_bytes(SITE.encode())
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "RLPROF_SITE_ENV": str(tmp_path / "site.env"),
        **more,
    }
    bash, python = with_files_by_bash(env), filled(env)

    assert {**bash, "RLPROF_HOME": ""} == {**python, "RLPROF_HOME": ""}
    if more.get("RLPROF_SITE_ENV") != "":
        assert python["QUOTED"] == "\"two  words\" 'and more'" and python["FROM_WINDOWS"] == "1"
        assert not {"EXPORTED", "INDENTED"} & python.keys()


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_site_file_that_is_not_utf_8_is_read_alike(tmp_path, locale):
    """Latin-1, from an old editor: a comment that ends so takes no line with it, a path keeps its bytes."""
    site = "# Menü\nBASE_LOG_DIR=/projekt/grün/x\nMENÜ=1\nENDS=ü\nLAST=1\n"
    (tmp_path / "site.env").write_bytes(site.encode("latin-1"))
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LC_ALL": locale,
        "RLPROF_SITE_ENV": str(tmp_path / "site.env"),
    }
    bash, python = with_files_by_bash(env), filled(env)
    assert {**bash, "RLPROF_HOME": ""} == {**python, "RLPROF_HOME": ""}
    assert os.fsencode(python["BASE_LOG_DIR"]) == b"/projekt/gr\xfcn/x" and python["LAST"] == "1"


STEPS = {
    "4711.1 bash\n4711.0 rlprof-beside\n4711.10 sh\n4711.batch batch\n": "4711.1",
    "4711.extern extern\n4711.10 a b\n4711.9 rlprof-beside\n": "4711.10",
    "17_2.0 apptainer\n17_2.batch batch\n": "17_2.0",
    "4711.0 rlprof-beside\n4711.batch batch\n": "",
    "4711.0 \n4711.batch batch\n": "4711.0",
    "": "",
}


@pytest.mark.parametrize(("listed", "step"), STEPS.items())
def test_the_step_of_the_supervisors_is_the_same(tmp_path, monkeypatch, listed, step):
    squeue = tmp_path / "squeue"
    squeue.write_text(
        f'#!/bin/bash\nprintf "%s\\n" "$* ${{!SQUEUE_@}}" >> {tmp_path}/asked\n'
        f"printf %s {shlex.quote(listed)}\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    env = {
        "PATH": os.environ["PATH"],
        "SQUEUE_STATES": "PENDING",
        "SLURM_JOB_ID": "19",
        "SLURM_ARRAY_JOB_ID": "17",
        "SLURM_ARRAY_TASK_ID": "2",
    }
    script = f"set -euo pipefail; source {HOME}/scripts/lib/slurm.sh; slurm::step"
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == client.first_step("17_2") == step
    bash, python = (tmp_path / "asked").read_text().splitlines()
    assert bash == python and "--jobs=17_2" in bash and "SQUEUE_" not in bash, "its user's filters hide steps"


def test_a_harvest_is_told_alike_when_it_is_ended(tmp_path):
    script = (
        f"set -euo pipefail; source {HOME}/scripts/lib/common.sh; source {HOME}/scripts/lib/job.sh;"
        " job::_here() { echo n1; };"
        " job::_again() { printf '%s\\n' \"$@\"; }; job::_harvest 120 '/runs/a b'"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=True)
    node, seconds, module, *bash = done.stdout.splitlines()
    python = harvest_words(Path("/runs/a b"), 120.0)
    until = bash.index("--until") + 1

    assert (node, seconds, module) == ("n1", "120", "rlprof_ops")
    assert [*bash[:until], *bash[until + 1 :]] == [*python[:until], *python[until + 1 :]]
    assert 0 <= int(python[until]) - int(bash[until]) <= 30
