"""`rlprof capture` and `rlprof stacks` from another shell, against the demo on three nodes in which
nothing was planned.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.real_nsys import nvtx_ranges
from tests.waits import wait_until
from tests.whole_job.jobs import NEEDS, Job

from rlprof_ops.collect import job_state
from rlprof_ops.host.contained_dir import ContainedDir

pytestmark = [
    *NEEDS,
    pytest.mark.timeout(1000),
]


def on_login(job, *arguments):
    """The command on the login node, which reaches the head; its exit code and output."""
    done = job.sandbox.exec(
        "login",
        [sys.executable, "-m", "rlprof_ops", *arguments],
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=150,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def rlprof(job, *arguments):
    """As a person types it where only the shared storage is, at which the head looks twice a minute."""
    done = subprocess.run(
        [sys.executable, "-m", "rlprof_ops", *arguments],
        cwd=job.folder,
        capture_output=True,
        text=True,
        timeout=150,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    )
    return done.returncode, done.stdout + done.stderr


def test_windows_of_a_job_in_which_nothing_was_planned(slurm, tmp_path):
    job = Job.submit(
        slurm,
        COMMAND="python -m rlprof_ops.demo --steps 2000",
        RAY_LOG_SYNC_FREQUENCY="2",
        RLPROF_ON_DEMAND="nsight",
    )
    wanted = {("policy_worker", 1), ("generation_worker", 0)}

    def known() -> bool:
        """Whether the head has heard of the workers, which is what the command goes by."""
        if not job.run.exists():
            return False
        with ContainedDir(job.run) as run:
            state = job_state.read(run)
        return state is not None and wanted <= {(each.worker, each.rank) for each in state.workers}

    wait_until(
        known,
        300,
        job.say,
        pause_s=0.2,
        unless=lambda: job.sandbox.job(job.id).state.startswith(("FAIL", "CANC", "COMP")),
    )

    folder = str(job.run)
    words = ["capture", folder, "--workers", "policy_worker", "--ranks", "1", "--steps", "next:2"]
    refused = "option 't' counts when a process is started"
    code, said = rlprof(job, *words, "--backend", "nsight", "--option", "t=nvtx")
    assert code == 2 and refused in said, said
    code, said = on_login(job, *words, "--option", "t=nvtx")  # which backend takes it, the worker says
    assert code == 3 and refused in said and not list(job.run.glob("profiles/nsight/*/*/*")), said
    code, said = rlprof(job, *words)
    assert code == 0, said
    by_rank = list(job.run.glob("profiles/nsight/*/*/*.nsys-rep"))
    assert len(by_rank) == 1 and str(by_rank[0]) in said and "policy_worker_rank1_" in said
    steps = {text for text in nvtx_ranges(by_rank[0], tmp_path) if text.startswith("step ")}
    first, last = map(int, by_rank[0].name.split("_step")[1].split("_")[0].split("-"))
    assert steps == {f"step {first}", f"step {last}"} and last == first + 1
    asked = sorted((job.run / "control").glob("*.json"))
    assert len(asked) == 1, "the head cannot be reached from here, and from the login node is asked itself"

    words = ["capture", folder, "--workers", "*", "--seconds", "2", "--backend", "torch"]
    code, said = on_login(job, *words)
    assert code == 0, said
    assert sorted((job.run / "control").glob("*.json")) == asked
    assert {path.parts[-3] for path in job.run.glob("profiles/torch/*/*/*.gz")} == {
        "policy_worker",
        "generation_worker",
        "controller",
    }
    assert job.sandbox.job(job.id).state == "RUNNING"

    code, said = rlprof(job, "capture", folder, "--workers", "critic", "--steps", "next:1")
    assert (
        code == 2
        and "no running worker matches critic: there are controller rank 0; generation_worker rank 0" in said
    )

    code, said = on_login(job, "stacks", folder, "--workers", "policy_worker")
    assert code == 0 and said.count("MainThread") == 2, said

    slurm.run(["scancel", str(job.id)])
    job.wait()
    code, said = rlprof(job, "capture", folder, "--workers", "policy_worker", "--steps", "next:1")
    assert code == 1 and f"job {job.id} has ended (signal" in said
    # torch makes its own folder when its profiler starts; everything else in a node's /tmp would be ours.
    assert [line for line in job.leftovers() if "torchinductor" not in line] == [], job.say()
