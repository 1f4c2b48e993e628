"""The life of a job's containers, with stand-ins of srun with pyxis and of enroot around the real functions
of the batch script and the real salvage: /tmp goes with the container, a named one stays on its node, and of
the host there is what is mounted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.needs import need

HOME = Path(__file__).parents[2]
PYXIS = Path(__file__).parent / "pyxis"
JOB = """
set -euo pipefail
for name in common knobs slurm job; do source "$RLPROF_HOME/scripts/lib/$name.sh"; done
knobs::load "$RLPROF_HOME"
job::container
slurm::srun_line "$RLPROF_HOME" "$RLPROF_RUN_DIR"
SRUN[-1]="$TASK"
job::run
"""


@dataclass(frozen=True)
class Nodes:
    """A job of the nodes n1 and n2. `hosts` holds each node's own storage and containers."""

    hosts: Path
    run: Path

    def job(self, script: str = JOB, **env: str) -> subprocess.CompletedProcess[str]:
        known = {
            "PATH": f"{self.hosts}/bin:{PYXIS}:{os.environ['PATH']}",
            "HOME": os.environ.get("HOME", "/"),
            "HOSTS": str(self.hosts),
            "NODES": "n1 n2",
            "TASK": str(PYXIS / "task"),
            "CONTAINER": "image",
            "MOUNTS": f"{self.hosts}:{self.hosts},{PYXIS}:{PYXIS}",
            "RLPROF_CONTAINER_RUNTIME": "pyxis",
            "RLPROF_HOME": str(HOME),
            "RLPROF_HARVEST_SECONDS": "0",
            "RLPROF_JOB": "7",
            "RLPROF_NODES": "n1 n2",
            "RLPROF_NODE_ROOT": "/mnt",
            "RLPROF_RUN_DIR": str(self.run),
            "RLPROF_VENV": sys.prefix,
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_SUBMIT_DIR": str(self.run.parent),
        }
        line = ["bash", "-c", script]
        return subprocess.run(line, env=known | env, capture_output=True, text=True, timeout=240)

    def break_attendant(self) -> None:
        """The step that waits for its word to remove containers cannot be started."""
        srun = self.hosts / "bin/srun"
        srun.write_text(f'#!/bin/bash\n[[ $* != *--gres=none* ]] || exit 1\nexec "{PYXIS}/srun" "$@"\n')
        srun.chmod(0o755)

    def containers(self) -> list[str]:
        return sorted(f"{path.parent.name}/{path.name}" for path in self.hosts.glob("*.enroot/pyxis_*"))

    def lines(self) -> list[str]:
        return (self.hosts / "srun.log").read_text().splitlines()


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    need("mount")
    made = Nodes(tmp_path / "hosts", tmp_path / "my project" / "7-logs")
    for folder in ("n1", "n2", "n1.enroot", "n2.enroot", "bin"):
        (made.hosts / folder).mkdir(parents=True)
    for folder in ("logs", "control", ".secrets"):
        (made.run / folder).mkdir(parents=True, mode=0o700)
    for tool, says in (
        ("scontrol", 'echo "${@:3}"'),
        ("scancel", f'echo "$@" >> "{made.hosts}/scancel.log"'),
    ):
        (made.hosts / "bin" / tool).write_text(f"#!/bin/bash\n{says}\n")
        (made.hosts / "bin" / tool).chmod(0o755)
    return made


def test_a_finished_report_comes_home_from_a_container_that_was_killed(nodes):
    done = nodes.job(KILLED="n2")

    assert done.returncode == 137, done.stderr
    said = done.stderr + (nodes.run / "logs/salvage.log").read_text()
    assert "no record of a clean end from n2: bringing home what is left there" in done.stderr
    assert (nodes.run / "profiles/torch/w/rank0/n2.pt.trace.json.gz").read_text() == "report\n", said
    assert json.loads((nodes.run / "nodes/n2.json").read_text())["salvaged"] is True
    assert "not everything came home" not in done.stderr
    assert nodes.containers() == [], said
    assert list((nodes.hosts / "n2").iterdir()) == []


def test_a_folder_that_went_with_its_container_is_told(nodes):
    done = nodes.job(FORGETFUL="n2")

    assert done.returncode == 137, done.stderr
    assert "node n2: not everything came home: /mnt/rlprof-0-7 is not there" in done.stderr
    assert "not a container's own /tmp" in json.loads((nodes.run / "nodes/n2.json").read_text())["gone"]
    assert nodes.containers() == []


def test_a_job_that_ends_well_leaves_no_container_and_needs_no_salvage(nodes):
    (nodes.hosts / "n1.enroot/pyxis_7_rlprof-7").mkdir()  # its name where the site scopes names by job
    (nodes.hosts / "n1.enroot/pyxis_somebody").mkdir()
    done = nodes.job()

    assert done.returncode == 0, done.stderr
    assert nodes.containers() == ["n1.enroot/pyxis_somebody"]
    assert len(nodes.lines()) == 2, "the job, and one step that removes containers on all nodes"
    assert ["--container-image" in line for line in sorted(nodes.lines(), key=len)].count(False) == 1


@pytest.mark.parametrize("page", ["howto_containers", "operators"])
def test_the_pages_name_what_makes_pyxis_remove_containers_itself(page: str) -> None:
    assert "`container_scope=job`" in (HOME / f"docs/{page}.md").read_text()


def test_a_job_that_is_cancelled_leaves_no_container(nodes):
    """Slurm starts no step any more: the one that removes them waits since the beginning."""
    done = nodes.job(CANCELLED=str(nodes.hosts / "expired"), SLURMD_NODENAME="n1")

    assert (nodes.hosts / "expired").exists() and done.returncode == 0, done.stderr
    assert nodes.containers() == [], done.stderr + (nodes.run / "logs/salvage.log").read_text()
    assert "may be there still" not in done.stderr


def test_containers_go_while_the_harvest_runs(nodes):
    """Slurm leaves a job that is being ended its KillWait for both."""
    harvest = """
        job::harvest_here() {
            for _ in {1..900}; do
                compgen -G "${HOSTS}/*.enroot/pyxis_*" > /dev/null || { touch "${HOSTS}/gone"; return 0; }
                sleep 0.1
            done
        }
        job::run"""
    done = nodes.job(JOB.replace("job::run", harvest), KILLED="n2")

    assert (nodes.hosts / "gone").exists(), done.stderr
    assert "may be there still" not in done.stderr


def test_where_that_step_is_gone_too_the_batch_host_needs_none_and_the_others_are_named(nodes):
    nodes.break_attendant()
    done = nodes.job(CANCELLED=str(nodes.hosts / "expired"), SLURMD_NODENAME="n1")

    assert nodes.containers() == ["n2.enroot/pyxis_rlprof-7"], done.stderr
    assert "node n2: container rlprof-7 may be there still" in done.stderr
    assert "enroot remove --force pyxis_rlprof-7" in done.stderr


@pytest.mark.parametrize(("daemon", "name"), [({}, "slurmstepd"), ({"DAEMON_NODE": "1"}, "slurmstepd-n2")])
def test_a_container_that_does_not_start_is_told_to_the_head_with_its_words(nodes, daemon, name):
    (nodes.hosts / "n2.enroot/broken").touch()
    done = nodes.job(**daemon)

    assert done.returncode == 1
    words = (nodes.run / "control/ended_n2").read_text().split("\n")
    assert words[0] == "Exited with exit code 1"
    assert f"{name}: error: pyxis: failed to import docker image image" in words
    assert "srun: error: n2: task 1: Exited with exit code 1" in done.stderr, "passed on as srun said it"
    assert not (nodes.hosts / "scancel.log").exists()


def test_a_head_whose_container_does_not_start_ends_the_step(nodes):
    """Its step is the second one: Slurm numbers steps as they come, and the one that removes containers came
    before."""
    (nodes.hosts / "n1.enroot/broken").touch()
    done = nodes.job(KILLED="n2", SECOND="1")

    assert (
        "node n1, the head, ended before it began (Exited with exit code 1): ending the others" in done.stderr
    )
    assert (nodes.hosts / "scancel.log").read_text() == "--signal=TERM 7.1\n"
    end = json.loads((nodes.run / "run.json").read_text())["end"]
    assert end["cause"] == "startup_failed"
    assert "failed to import docker image image" in end["detail"], end


def test_an_order_to_end_reaches_the_supervisors_and_no_step_beside_them(nodes):
    """Where the head's keeper is not visible from the batch script. The order came before their step did."""
    early = """
        (until grep -qs rlprof-beside "${HOSTS}/steps"; do sleep 0.1; done; kill -TERM $$
         until [[ -e ${HOSTS}/asked || -e ${HOSTS}/scancel.log ]]; do sleep 0.1; done; touch "${HOSTS}/go") &
        SRUN=(bash -c 'until [[ -e ${HOSTS}/go ]]; do sleep 0.1; done; exec "$@"' wait "${SRUN[@]}")
        job::run"""
    task = nodes.hosts / "task"
    task.write_text("#!/bin/bash\nuntil [[ -s ${HOSTS}/scancel.log ]]; do sleep 0.1; done\n")
    task.chmod(0o755)
    done = nodes.job(JOB.replace("job::run", early), TASK=str(task))
    assert (nodes.hosts / "scancel.log").read_text() == "--signal=TERM 7.1\n", done.stderr
    assert "got TERM: told step 7.1 to drain" in done.stderr


def test_the_reason_of_a_container_may_come_after_the_end_of_its_task(nodes):
    """As pyxis says it of a damaged image (tests/scripts/test_real_pyxis.py)."""
    (nodes.hosts / "n1.enroot/broken").touch()
    (nodes.hosts / "late").write_text(
        "slurmstepd-n1: error: pyxis: printing enroot log file:\n"
        "slurmstepd-n1: error: pyxis:     FATAL ERROR: File system corruption detected\n"
        "slurmstepd-n1: error: pyxis:     created 0 fifos\n"
        "slurmstepd-n2: error: pyxis: child 72 terminated with signal 15\n"
        "slurmstepd-n1: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"
        "slurmstepd-n1: error: Failed to invoke spank plugin stack\n"
    )
    done = nodes.job(DAEMON_NODE="1", SLURMD_NODENAME="n1")

    detail = json.loads((nodes.run / "run.json").read_text())["end"]["detail"]
    assert detail.endswith("FATAL ERROR: File system corruption detected"), detail
    assert "signal 15" not in detail and "spank" not in detail and "printing" not in detail
    assert "node n1: not everything came home" not in done.stderr, "nothing had begun that could be lost"


def test_a_task_that_cannot_be_launched_is_no_success(nodes):
    (nodes.hosts / "n2.enroot/unlaunched").touch()
    (nodes.run / "run.json").touch()  # the head's, which goes on
    assert nodes.job().returncode == 0, "srun says 0, as the real one does"
    assert (
        (nodes.run / "control/ended_n2").read_text().startswith("launch failed: Plugin initialization failed")
    )

    (nodes.run / "run.json").unlink()
    (nodes.hosts / "n1.enroot/unlaunched").touch()
    done = nodes.job()
    assert done.returncode == 1
    assert "no node began: srun said why above" in done.stderr


def test_a_mount_that_is_missing_is_told_in_pyxis_words(nodes):
    done = nodes.job(MOUNTS=f"{nodes.hosts}:{nodes.hosts},/no/such:/data,{PYXIS}:{PYXIS}")
    assert done.returncode == 1
    assert "mount: /no/such: no such file or directory" in (nodes.run / "control/ended_n2").read_text()


def test_the_folders_of_uv_and_of_reports_are_made(nodes, tmp_path):
    folders = {"RLPROF_OUTPUT_DIR": "reports", "NRL_TORCH_PROFILE_DIR": "./traces"}
    assert nodes.job(UV_CACHE_DIR_OVERRIDE=str(tmp_path / "uv/cache"), **folders).returncode == 0
    assert (tmp_path / "uv/cache").is_dir()
    assert (nodes.run.parent / "reports").is_dir() and (nodes.run.parent / "traces").is_dir()
    done = nodes.job(UV_CACHE_DIR_OVERRIDE="/proc/nowhere/uv")
    assert done.returncode == 2 and "UV_CACHE_DIR_OVERRIDE=/proc/nowhere/uv: cannot be made" in done.stderr
