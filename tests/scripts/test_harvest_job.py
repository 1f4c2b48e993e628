"""The job that harvests and reports another one: which jobs ask for it, how sbatch is called, what is left
when it refuses. sbatch is a stand-in here; the real one is in tests/whole_job/test_main_job.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.recorder.simulated import BEGIN_NS, healthy

from rlprof_ops.job import harvest_job
from rlprof_ops.job.folders import pinned_run
from rlprof_ops.job.knobs import Settings
from rlprof_ops.recorder.head_recorder import HeadRecorder
from rlprof_ops.recorder.news import News
from rlprof_ops.request import ProfileRequest
from rlprof_ops.supervisor import job_end

HOME = Path(__file__).parents[2]
SBATCH = """#!{python}
import json, os, sys
open({calls!r}, "a").write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
if os.path.exists({refuses!r}):
    sys.exit(open({refuses!r}).read())
print("a plugin says hello\\n4712;east\\nand your quota is 80 % used")
"""
LIBRARIES = (
    'for name in common knobs slurm harvest_job job; do source "$RLPROF_HOME/scripts/lib/$name.sh"; done; '
)
JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_JOB_ACCOUNT": "rl",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_QOS": "normal",
    "SLURM_CPUS_ON_NODE": "64",
    "SLURM_NTASKS_PER_NODE": "8",
    "SBATCH_GRES": "gpu:8",
    "SLURM_CONF": "/etc/slurm.conf",
    "RLPROF_JOB": "4711",
}


class Sbatch:
    """A stand-in on PATH that notes how it was called."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "my project" / "4711-logs"
        (self.run / "logs").mkdir(parents=True)
        self._calls, self._refuses = folder / "calls.jsonl", folder / "refuses"
        program = folder / "bin" / "sbatch"
        program.parent.mkdir()
        program.write_text(
            SBATCH.format(python=sys.executable, calls=str(self._calls), refuses=str(self._refuses))
        )
        program.chmod(0o755)
        self.env = {
            **JOB,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "RLPROF_HOME": str(HOME),
            "RLPROF_RUN_DIR": str(self.run),
            "HOME": str(folder),
        }

    def refuse(self, words: str) -> None:
        self._refuses.write_text(words)

    @property
    def calls(self) -> list[tuple[list[str], dict[str, str]]]:
        if not self._calls.exists():
            return []
        return [tuple(json.loads(line)) for line in self._calls.read_text().splitlines()]

    def bash(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f'{LIBRARIES} knobs::load "$RLPROF_HOME"; {script}'],
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=180,
        )


@pytest.fixture
def sbatch(tmp_path):
    return Sbatch(tmp_path)


@pytest.mark.parametrize(
    ("nodes", "knobs", "expected"),
    [
        ("3", {"RLPROF_HARVEST_JOB": "auto"}, "1"),
        ("1", {"RLPROF_HARVEST_JOB": "auto"}, "0"),
        ("1", {"RLPROF_HARVEST_JOB": "1"}, "1"),
        ("3", {"RLPROF_HARVEST_JOB": "0"}, "0"),
        ("3", {"RLPROF_HARVEST_JOB": "auto", "RLPROF_HARVEST_SECONDS": "0"}, "0"),
    ],
)
def test_more_than_one_node_does_not_wait_for_its_harvest(sbatch, nodes, knobs, expected):
    """As ray.sub decides it, and as RayJob does."""
    done = sbatch.bash('job::who_harvests; echo "$RLPROF_HARVEST_JOB"', SLURM_JOB_NUM_NODES=nodes, **knobs)
    assert done.stdout.strip() == expected, done.stderr
    assert harvest_job.is_wanted(Settings.load(knobs), int(nodes), sbatch.env) is (expected == "1")
    assert not harvest_job.is_wanted(Settings.load(knobs), int(nodes), {"PATH": "/none"}), "without sbatch"


def test_a_quote_that_does_not_end_is_said_at_the_start(sbatch):
    done = sbatch.bash("job::who_harvests", RLPROF_HARVEST_ARGS="--comment='x")
    assert (
        done.returncode == 2 and "RLPROF_HARVEST_ARGS=--comment='x: a quote that does not end." in done.stderr
    )


def test_of_the_last_element_of_an_array_it_does_not_wait_for_the_others(sbatch):
    """Slurm takes that one's number for the whole array."""
    array = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}
    sbatch.bash('harvest_job::submit "$RLPROF_HOME" "$RLPROF_RUN_DIR"', **array)
    [(argv, _)] = sbatch.calls
    assert "--dependency=afterany:4711_3" in argv


def test_it_is_a_job_of_one_node_after_this_one_with_nothing_of_the_users(sbatch):
    secret = {"HF_TOKEN": "hf_abc", "RLPROF_REQUEST_JSON": "{}", "RLPROF_SRUN_ARGS": "--gres=gpu:8"}
    done = subprocess.run(
        [HOME / "scripts" / "submit_harvest.sh", sbatch.run],
        env=sbatch.env | secret
        | {"RLPROF_HARVEST_ARGS": "--partition=cpu --comment='a b'", "RLPROF_VENV": "/v e"},
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "4712\n"), done.stderr
    [(argv, env)] = sbatch.calls
    assert argv == [
        "--parsable",
        "--dependency=afterany:4711",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=4",
        "--job-name=rlprof-harvest",
        "--time=14",
        "--export=ALL",
        "--no-requeue",
        f"--chdir={sbatch.run}",
        f"--output={sbatch.run}/logs/harvest.log",
        "--open-mode=append",
        "--account=rl",
        "--partition=gpu",
        "--qos=normal",
        "--partition=cpu",
        "--comment=a b",
        f"{HOME}/scripts/harvest.sh",
        str(sbatch.run),
    ]
    assert {
        "RLPROF_RUN_DIR": str(sbatch.run),
        "RLPROF_VENV": "/v e",
        "SLURM_CONF": "/etc/slurm.conf",
    }.items() <= env.items()
    assert not {*secret, "SLURM_NTASKS_PER_NODE", "SBATCH_GRES", "SLURM_JOB_ID", "COMMAND"} & env.keys()
    assert json.loads((sbatch.run / "harvest_job.json").read_text())["job"] == "4712"


def end_of_job(sbatch: Sbatch, cause: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The batch script's last part, with what it would run on a node printed instead."""
    (sbatch.run / "run.json").write_text(json.dumps({"end": {"cause": cause}}, indent=1))
    script = """
        srun() { printf 'srun %s\\n' "$*"; }
        timeout() { shift; shift; "$@"; }
        job::salvage() { :; }; job::remove_containers() { :; }; job::_listen_to_srun() { cat > /dev/null; }
        SRUN=(true); TASK_LINE=(srun); RLPROF_NODES="n1 n2 n3"; job::who_harvests
        mkdir -p "$RLPROF_RUN_DIR/profiles/a/b/c/d"
        job::run"""
    return sbatch.bash(script, RLPROF_HARVEST_JOB="auto", **env)


def test_a_job_that_ran_leaves_its_harvest_to_another(sbatch):
    done = end_of_job(sbatch, "driver_exit")
    assert done.returncode == 0 and len(sbatch.calls) == 1, done.stderr
    assert "harvest and report: job 4712, when this one has ended" in done.stderr
    assert done.stdout == ""


def test_a_start_that_failed_has_its_manifest_already(sbatch):
    (sbatch.run / "manifest.json").write_text("{}")
    done = end_of_job(sbatch, "startup_failed")
    assert sbatch.calls == [] and done.stdout == "", done.stdout + done.stderr


def test_where_sbatch_refuses_the_job_harvests_itself_and_says_so(sbatch):
    sbatch.refuse("sbatch: error: QOSMinGRES")
    done = end_of_job(sbatch, "driver_exit")
    assert "not as a job of their own, sbatch said: sbatch: error: QOSMinGRES" in done.stderr
    assert "this job harvests by itself and keeps its nodes meanwhile" in done.stderr
    ran = [line.split("rlprof_ops ")[-1].split()[0] for line in done.stdout.splitlines()]
    assert ran == ["harvest", "report"], done.stdout + done.stderr
    assert not (sbatch.run / "harvest_job.json").exists()


def test_a_report_is_made_where_the_recorder_has_seen_steps(tmp_path: Path) -> None:
    """The shell and the supervisor look for the same, in the recorder's own summary."""
    sbatch = Sbatch(tmp_path)
    run, summary = sbatch.run, sbatch.run / "recorder" / "summary.json"
    summary.parent.mkdir()

    def both() -> tuple[bool, bool]:
        asked = sbatch.bash(LIBRARIES + 'harvest_job::has_something "$RLPROF_RUN_DIR"')
        assert not asked.stderr, asked.stderr
        return asked.returncode == 0, job_end.has_something(run)

    assert both() == (False, False)
    for steps, there in ((0, False), (3, True)):
        head = HeadRecorder(pinned_run(run, tmp_path), "4711", ["n1"], ProfileRequest(), lambda told: None)
        for told in healthy(1, steps, ranks=2):
            head.take(News("n1", BEGIN_NS, None, (), (), (), tuple(told), (), {}))
        head.close(10)
        assert summary.stat().st_size and both() == (there, there), summary.read_text()
    summary.unlink()
    (run / "profiles" / "torch" / "w" / "rank0").mkdir(parents=True)
    (run / "profiles" / "torch" / "w" / "rank0" / "x.pt.trace.json").touch()
    assert both() == (True, True)
