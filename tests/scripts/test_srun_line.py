"""The srun line of each container runtime, word for word, and the knobs as bash reads them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]

SCRIPT = """
set -euo pipefail
source "$RLPROF_HOME/scripts/lib/common.sh"
source "$RLPROF_HOME/scripts/lib/knobs.sh"
source "$RLPROF_HOME/scripts/lib/slurm.sh"
knobs::load "$RLPROF_HOME"
slurm::srun_line "$RLPROF_HOME" "$1"
printf '%s\\n' "${SRUN[@]}"
"""
LIBRARIES = 'for name in common slurm job; do source "$RLPROF_HOME/scripts/lib/$name.sh"; done; '
COMMON = ["srun", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--mpi=none", "--wait=0"]


def bash(script: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    base = {"PATH": os.environ["PATH"], "RLPROF_HOME": str(HOME)}
    return subprocess.run(["bash", *script], env=base | env, capture_output=True, text=True, timeout=120)


def srun_line(run_folder: str = "/shared/7-logs", **env: str) -> list[str]:
    job = {"RLPROF_JOB": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_SUBMIT_DIR": "/shared/my project"}
    done = bash(["-c", SCRIPT, "test", run_folder], job | env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_without_a_container():
    assert srun_line() == [*COMMON, "--whole", "--kill-on-bad-exit=0", "bash", f"{HOME}/scripts/node.sh"]


def test_cpus_and_extra_arguments_and_spare_nodes():
    line = srun_line(CPUS_PER_WORKER="16", RLPROF_SRUN_ARGS="--mem=0 --gres=gpu:8", RLPROF_MIN_NODES="2")

    assert line == [
        *COMMON,
        "--cpus-per-task=16",
        "--kill-on-bad-exit=0",
        "--mem=0",
        "--gres=gpu:8",
        "bash",
        f"{HOME}/scripts/node.sh",
    ]


def test_words_are_split_as_a_shell_does_and_nothing_is_expanded(tmp_path):
    arguments = """ --comment='two words' --x="it's" --y=a\\ b $(touch never) *"""
    line = srun_line(RLPROF_SRUN_ARGS=arguments)
    start = line.index("--kill-on-bad-exit=0") + 1
    assert line[start:-2] == shlex.split(arguments)
    assert srun_line(RLPROF_SRUN_ARGS="  ") == srun_line()

    job = {
        "RLPROF_JOB": "7",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_SUBMIT_DIR": "/s",
        "RLPROF_SRUN_ARGS": "--x='a",
    }
    done = bash(["-c", SCRIPT, "test", "/shared/7-logs"], job)
    assert done.returncode == 2 and "RLPROF_SRUN_ARGS=--x='a: a quote that does not end." in done.stderr


def test_wishes_for_each_task_do_not_reach_our_one_task_a_node():
    """sbatch --ntasks-per-node=8 --gpus-per-task=1: srun reads these, and one task would get one GPU."""
    env = {"SLURM_GPUS_PER_TASK": "1", "SLURM_TRES_PER_TASK": "gres/gpu=1", "SLURM_GPU_BIND": "per_task:1"}
    job = {"RLPROF_JOB": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_SUBMIT_DIR": "/s", "SLURM_GPUS": "24"}
    done = bash(["-c", f"{SCRIPT}\nenv", "test", "/shared/7-logs"], job | env)
    assert not [name for name in env if f"{name}=" in done.stdout]
    assert "SLURM_GPUS=24" in done.stdout


@pytest.mark.parametrize("name", ["SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV"])
def test_a_job_without_the_shells_environment_gives_its_nodes_what_the_script_exports(name):
    """sbatch --export=NONE: srun reads it as its own, and node.sh would have neither home nor run folder."""
    job = {"RLPROF_JOB": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_SUBMIT_DIR": "/s", name: "NONE"}
    done = bash(["-c", f"{SCRIPT}\nenv", "test", "/shared/7-logs"], job)
    assert done.returncode == 0 and f"{name}=" not in done.stdout


@pytest.mark.parametrize(
    ("each", "tasks", "expected"), [("1", "24", ["--gpus-per-node=8"]), ("a100:1", "20", []), ("", "24", [])]
)
def test_a_wish_for_each_task_is_one_for_all_gpus_of_a_node(each, tasks, expected):
    """Where the nodes have equally many; tests/whole_job/test_kinds_of_jobs.py has what Slurm makes of it."""
    wishes = {"SLURM_GPUS_PER_TASK": each, "SLURM_NTASKS": tasks, "SLURM_GPUS_ON_NODE": "8"}
    words = [word for word in srun_line(**wishes) if word.startswith("--gpus")]
    assert words == expected


def test_a_heterogeneous_job_is_refused():
    script = f"{LIBRARIES} CONTAINER= RLPROF_CONTAINER_RUNTIME=; job::preflight"
    done = bash(["-euo", "pipefail", "-c", script], {"SLURM_HET_SIZE": "2"})
    assert done.returncode == 2
    assert "a heterogeneous job of 2 components: one Ray cluster spans one allocation" in done.stderr


ADDRESS = LIBRARIES + 'slurm::address "n1"'
IP_ADDR = """\
1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
2: eno1    inet 192.168.3.7/24 brd 192.168.3.255 scope global eno1\\       valid_lft forever
7: ib0    inet 10.1.130.7/16 brd 10.1.255.255 scope global ib0\\       valid_lft forever
"""


@pytest.mark.parametrize(
    ("wanted", "node_address", "resolves", "expected"),
    [
        ("", "10.9.9.9", "", "10.9.9.9"),
        ("", "n1", "10.9.9.8 STREAM n1", "10.9.9.8"),
        ("", "n1.cluster.example", "127.0.1.1 STREAM n1\n10.9.9.7 STREAM n1", "10.9.9.7"),
        ("", "n1", "127.0.1.1 STREAM n1", "192.168.3.7"),
        ("ib0", "10.9.9.9", "", "10.1.130.7"),
        ("10.1.0.0/16", "10.9.9.9", "", "10.1.130.7"),
        ("192.168.3.0/24", "10.9.9.9", "", "192.168.3.7"),
        ("0.0.0.0/0", "10.9.9.9", "", "127.0.0.1"),
        ("ib1", "10.9.9.9", "", None),
        ("10.2.0.0/16", "10.9.9.9", "", None),
    ],
)
def test_the_network_of_a_job(tmp_path, wanted, node_address, resolves, expected):
    """Slurm, the resolver and iproute2 as they print; a name that is 127.0.1.1 here is useless to others."""
    route = "192.0.2.1 via 192.168.3.1 dev eno1 src 192.168.3.7 uid 0"
    says = {
        "scontrol": f"   NodeAddr={node_address} NodeHostName=n1 Version=22.05\n",
        "getent": f"{resolves}\n",
    }
    for tool, text in says.items():
        (tmp_path / tool).write_text(f"#!/bin/sh\ncat <<'EOF'\n{text}EOF\n")
    (tmp_path / "ip").write_text(
        f"#!/bin/sh\n[ $2 = route ] && echo '{route}' && exit\ncat <<'EOF'\n{IP_ADDR}EOF\n"
    )
    for tool in tmp_path.iterdir():
        tool.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RLPROF_INTERFACE": wanted}
    done = bash(["-euo", "pipefail", "-c", ADDRESS], env)
    if expected is None:
        assert done.returncode == 2
        known = "lo=127.0.0.1/8 eno1=192.168.3.7/24 ib0=10.1.130.7/16"
        assert (
            f"RLPROF_INTERFACE={wanted}: node n1 has no IPv4 address there. It has: {known}." in done.stderr
        )
    else:
        assert done.stdout.strip() == expected, done.stderr


def mounts(asked: list[str], ours: list[str]) -> str:
    """The user's and ours, parents first."""
    both = [*asked, *(f"{path}:{path}" for path in ours)]
    return ",".join(sorted(both, key=lambda mount: mount.split(":")[1].count("/")))


def test_pyxis():
    line = srun_line(CONTAINER="registry#nvidia/nemo-rl:v0.4", MOUNTS="/lustre:/lustre,/home/me:/home/me:ro")

    assert line == [
        *COMMON, "--whole", "--kill-on-bad-exit=0",
        "--container-image=registry#nvidia/nemo-rl:v0.4",
        "--container-name=rlprof-7",
        "--container-mounts="
        + mounts(
            ["/lustre:/lustre", "/home/me:/home/me:ro"],
            ["/tmp", str(HOME), "/shared/7-logs", "/shared/my project"],
        ),
        "--no-container-mount-home",
        "--container-workdir=/shared/my project",
        "--container-env=RLPROF_HOME,RLPROF_RUN_DIR",
        "bash", f"{HOME}/scripts/node.sh",
    ]  # fmt: skip


def test_apptainer_with_a_space_in_the_run_folder():
    line = srun_line(
        "/shared/my runs/7-logs",
        CONTAINER="/images/verl.sif",
        RLPROF_CONTAINER_RUNTIME="apptainer",
        RLPROF_CONTAINER_WRITABLE="1",
        UV_CACHE_DIR_OVERRIDE="/cache/uv",
    )

    binds = mounts([], ["/tmp", str(HOME), "/shared/my runs/7-logs", "/shared/my project", "/cache/uv"])
    assert line == [
        *COMMON, "--whole", "--kill-on-bad-exit=0",
        "apptainer", "exec", "--nv", "--writable-tmpfs", "--bind", binds, "--pwd", "/shared/my project",
        "/images/verl.sif", "bash", f"{HOME}/scripts/node.sh",
    ]  # fmt: skip


def test_run_folders_of_earlier_attempts_are_mounted():
    earlier = 'EARLIER_FOLDERS[1]="/shared/my runs/7.r1-logs"'
    script = SCRIPT.replace("slurm::srun_line", f"{earlier}; slurm::srun_line")
    job = {"RLPROF_JOB": "7.r2", "SLURM_JOB_NUM_NODES": "3", "SLURM_SUBMIT_DIR": "/here", "CONTAINER": "img"}
    done = bash(["-c", script, "test", "/shared/my runs/7.r2-logs"], job)

    (listed,) = (word for word in done.stdout.splitlines() if word.startswith("--container-mounts="))
    assert "/shared/my runs/7.r1-logs:/shared/my runs/7.r1-logs" in listed.split(","), done.stderr


def test_what_a_job_needs_of_the_host_is_mounted(tmp_path):
    """A virtual environment with the Python behind its links, an nsys, the request, the reports' place."""
    python = tmp_path / "pythons/cpython-3.11.9/bin/python3.11"
    nsys = tmp_path / "nsight/2025.1/target-linux-x64/nsys"
    for program in (python, nsys):
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    link = tmp_path / "tools/bin/nsys"
    (tmp_path / "parted/host-linux-x64").mkdir(parents=True)
    (tmp_path / "nsight/2025.1/host-linux-x64").symlink_to("../../parted/host-linux-x64")
    link.parent.mkdir(parents=True)
    link.symlink_to("../../nsight/2025.1/target-linux-x64/nsys")
    (tmp_path / "pythons/cpython-3.11").symlink_to("cpython-3.11.9")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python3").symlink_to(tmp_path / "pythons/cpython-3.11/bin/python3.11")
    (venv / "bin/python").symlink_to("python3")

    line = srun_line(
        CONTAINER="img",
        RLPROF_VENV=str(venv),
        RLPROF_NSYS=str(link),
        RLPROF_REQUEST="asked/profile.yaml",
        RLPROF_OUTPUT_DIR="/reports",
        NRL_TORCH_PROFILE_DIR="../traces/./torch",
        RLPROF_NODE_ROOT="/raid/nodes",
        RLPROF_CONTAINER_WRITABLE="1",
        UV_CACHE_DIR_OVERRIDE="/cache/uv",
        MOUNTS="/elsewhere:/reports",
    )

    (listed,) = (word.partition("=")[2] for word in line if word.startswith("--container-mounts="))
    ours = ["/raid/nodes", str(HOME), "/shared/7-logs", "/shared/my project", "/shared/my project/asked"]
    ours += ["/shared/my project/../traces/./torch"]
    ours += ["/cache/uv", str(venv), str(tmp_path / "pythons/cpython-3.11"), str(tmp_path / "nsight/2025.1")]
    ours += [str(tmp_path / "pythons/cpython-3.11.9")]
    ours += [str(tmp_path / "tools"), str(tmp_path / "parted/host-linux-x64")]
    assert sorted(listed.split(",")) == sorted(["/elsewhere:/reports", *(f"{path}:{path}" for path in ours)])
    depths = [mount.split(":")[1].count("/") for mount in listed.split(",")]
    assert depths == sorted(depths), "a mount hides what was mounted below it before"
    assert "--container-env=RLPROF_HOME,RLPROF_RUN_DIR,UV_CACHE_DIR" in line
    assert "--container-writable" in line


def test_folders_that_the_image_has_itself_are_not_mounted():
    line = srun_line(CONTAINER="img", RLPROF_VENV="/no/such/venv", RLPROF_NSYS="/usr/bin/env")
    (listed,) = (word for word in line if word.startswith("--container-mounts="))
    assert "/no/such" not in listed and "/usr" not in listed


def test_a_path_that_no_container_can_mount_is_named():
    job = {"RLPROF_JOB": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_SUBMIT_DIR": "/a,b", "CONTAINER": "img"}
    done = bash(["-c", SCRIPT, "test", "/shared/7-logs"], job)
    assert done.returncode == 2
    assert "/a,b: a path with a comma or a colon cannot be mounted into a container." in done.stderr


def test_a_value_is_taken_literally_and_the_environment_wins(tmp_path):
    never = tmp_path / "never"
    site = tmp_path / "site.env"
    site.write_text(f"CONTAINER=$(touch {never})`id`\nCPUS_PER_WORKER=4\n# comment\nnot a line\n")

    line = srun_line(RLPROF_SITE_ENV=str(site), CPUS_PER_WORKER="8")

    assert f"--container-image=$(touch {never})`id`" in line
    assert "--cpus-per-task=8" in line
    assert not never.exists()


def test_an_unknown_trainer_is_answered_with_the_list():
    done = bash(["-c", SCRIPT, "test", "/x"], {"RLPROF_TRAINER": "nemo"})

    assert done.returncode == 2
    assert "RLPROF_TRAINER=nemo: no such file as env/trainer_nemo.env." in done.stderr
    assert "Known: nemo_rl nemo_rl_megatron rlinf verl." in done.stderr


@pytest.mark.parametrize(("machine", "folder"), [("x86_64", "x86_64-linux"), ("aarch64", "sbsa-linux")])
def test_megatron_library_path_follows_the_machine(tmp_path, machine, folder):
    # node.sh runs with a `uname` and an interpreter of ours; the latter prints the path it was given.
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "uname").write_text(f"#!/bin/sh\necho {machine}\n")
    (tools / "fakepython").write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    trainer = (HOME / "env" / "trainer_nemo_rl_megatron.env").read_text().splitlines()
    values = dict(line.split("=", 1) for line in trainer if line.startswith("RLPROF_LD"))
    env = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "RLPROF_RUN_DIR": str(tmp_path),
        "RLPROF_PYTHON": "fakepython",
        "LD_LIBRARY_PATH": "/mine",
    }

    done = bash([str(HOME / "scripts" / "node.sh")], values | env)

    assert done.stdout.startswith(f"/usr/local/cuda/targets/{folder}/lib:/usr/local/cuda/lib64:")
    assert done.stdout.strip().endswith(":/mine")


def test_a_node_without_python_says_so_in_the_job_and_in_its_log(tmp_path):
    (tmp_path / "logs").mkdir()
    env = {"RLPROF_RUN_DIR": str(tmp_path), "RLPROF_PYTHON": "/no/such/python", "SLURMD_NODENAME": "n3"}

    done = bash([str(HOME / "scripts" / "node.sh")], env)

    assert done.returncode == 127
    assert "node n3: no Python: '/no/such/python' is not there." in done.stderr
    assert "no Python" in (tmp_path / "logs" / "n3.log").read_text()


def test_ray_sub_outside_slurm_names_the_way_in():
    done = bash([str(HOME / "ray.sub")], {})

    assert done.returncode == 2
    assert "ray.sub runs inside a Slurm job. Submit it: sbatch -N 2" in done.stderr


def test_ray_sub_with_a_command_as_its_arguments_names_the_way_in():
    """Without COMMAND it would be an interactive cluster, which holds its nodes."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    done = bash([str(HOME / "ray.sub"), "python", "train.py", "--token=hf_of_mine"], job)

    assert done.returncode == 2
    assert "has 3, from 'python' on. Give the command as COMMAND" in done.stderr
    assert "hf_of_mine" not in done.stderr


@pytest.mark.parametrize(
    ("said", "kept", "array", "job"),
    [
        ("", "", {}, "7"),
        ("(null)", "", {}, "7"),
        ("a = b; c", "a = b; c; ", {}, "7"),
        ("rlprof:/old/7-logs", "", {}, "7"),
        ("mine; rlprof:/old/7-logs", "mine; ", {}, "7"),
        # The last element has the id of the array, which is that of all elements to scontrol.
        ("", "", {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}, "7_1"),
    ],
)
def test_the_run_folder_is_recorded_after_the_users_own_comment(tmp_path, said, kept, array, job):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(
        "#!/bin/bash\n"
        f"if [[ $1 == show ]]; then printf 'JobId=7 JobName=x\\n   Comment=%s\\n' '{said}'\n"
        f"else printf '%s\\n' \"$@\" > {tmp_path}/update; fi\n"
    )
    (tools / "scontrol").chmod(0o755)
    script = LIBRARIES + 'slurm::record_run_folder "/a b/7-logs"'
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"} | array
    done = bash(["-euo", "pipefail", "-c", script], env)
    assert done.returncode == 0, done.stderr
    updated = (tmp_path / "update").read_text().splitlines()
    assert updated == ["update", f"JobId={job}", f"Comment={kept}rlprof:/a b/7-logs"]


def test_a_job_of_plain_sbatch_is_remembered_once(tmp_path):
    """As `rlprof submit` writes it, read by the same code."""
    from rlprof_ops.job import job_history

    script = LIBRARIES + "job::_remember; job::_remember"
    env = {
        "XDG_STATE_HOME": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "my job",
        "RLPROF_RUN_DIR": "/a b/7.r1-logs",
    }
    done = bash(["-euo", "pipefail", "-c", script], env)
    assert done.returncode == 0, done.stderr
    (known,) = job_history.recall({"XDG_STATE_HOME": str(tmp_path)})
    assert (known.job, known.run, known.name) == ("7", "/a b/7-logs", "my job")
    done = bash(["-euo", "pipefail", "-c", script], {**env, "XDG_STATE_HOME": "/proc/nowhere"})
    assert done.returncode == 0, done.stderr


def test_no_array_that_may_be_empty_ends_an_old_bash():
    """Up to 4.3 `"${x[@]}"` of an empty array is an unbound variable under `set -u`."""
    never_empty = {"SRUN", "line", "behind", "nodes", "options", "variables", "words", "WORDS", "rlprof"}
    never_empty |= {"TASK_LINE", "LINE_HERE", "REMOVE"}
    scripts = [HOME / "ray.sub", *(HOME / "scripts").rglob("*.sh")]
    bare = [
        f"{path.name}: {found[0]}"
        for path in scripts
        for found in re.finditer(r'(?<!\+)"\$\{(\w+)\[@\]\}"', path.read_text())
        if found[1] not in never_empty
    ]
    assert bare == []


def test_a_scontrol_that_fails_is_said(tmp_path):
    script = """
set -euo pipefail
source "$RLPROF_HOME/scripts/lib/common.sh"
source "$RLPROF_HOME/scripts/lib/knobs.sh"
source "$RLPROF_HOME/scripts/lib/slurm.sh"
source "$RLPROF_HOME/scripts/lib/job.sh"
knobs::load "$RLPROF_HOME"
job::addresses
"""
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "scontrol").chmod(0o755)
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = bash(["-c", script], env)
    assert done.returncode == 1
    assert "`scontrol show hostnames n[1-3]` named no node" in done.stderr


def test_the_supervisor_is_found_among_many_processes_at_once(tmp_path):
    """By its command line and environment; in a time that a thousand processes do not make seconds."""
    script = """
source "$RLPROF_HOME/scripts/lib/common.sh"
source "$RLPROF_HOME/scripts/lib/job.sh"
job::_keeper
"""
    package = tmp_path / "rlprof_ops.supervisor"
    package.write_text("import time; print(flush=True); time.sleep(100)")
    job = {"RLPROF_RUN_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    started = []
    try:
        for number in ("1", "0"):
            argv = [sys.executable, "rlprof_ops.supervisor"]
            process = subprocess.Popen(
                argv, cwd=tmp_path, env={**job, "SLURM_NODEID": number}, stdout=subprocess.PIPE
            )
            started.append(process)
            process.stdout.readline()
        done = bash(["-c", script], job)
    finally:
        for process in started:
            process.kill()
            process.wait(10)
    assert done.stdout.split() == [str(started[1].pid)], done.stderr
