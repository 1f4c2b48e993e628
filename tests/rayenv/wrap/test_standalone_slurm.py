"""`srun rlprof wrap … python train.py` on real nodes: without Ray, without a job of ours."""

import json
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.nsys, pytest.mark.timeout(500)]

HOME = Path(__file__).parents[3]
TRAINING = """
import sys, time
from rlprof_ops.runtime import profiler
with profiler.from_env() as prof:
    for step in range(1, 6):
        with prof.step(step), prof.range("train"):
            time.sleep(0.01)
sys.exit(3 if "--fail" in sys.argv else 0)
"""


@pytest.mark.parametrize(("words", "code"), [([], 0), (["--fail"], 3)])
def test_two_tasks_on_two_nodes_leave_their_windows_on_shared_storage(slurm, words, code):
    folder = slurm.shared / f"wrapped run {code}"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    env = {
        "PYTHONPATH": str(HOME / "python"),
        "RLPROF_STEPS": "3:5",
        "RLPROF_WORKERS": "policy*",
        "RLPROF_OPTIONS": '{"t": "nvtx"}',
        "RLPROF_RUN_DIR": str(folder / "run"),
    }
    command = [
        sys.executable,
        "-m",
        "rlprof_ops",
        "wrap",
        "--worker",
        "policy_worker",
        "--",
        sys.executable,
        "train.py",
        *words,
    ]

    done = slurm.run(
        ["srun", "-N2", "-n2", "--mpi=none", *command], env=env, cwd=folder, timeout=400, check=False
    )

    assert done.returncode == code, done.stdout + done.stderr
    reports = sorted(
        path.name.rpartition("_")[0] for path in folder.glob("run/profiles/nsight/policy_worker/*/*.nsys-rep")
    )
    rows = json.loads((folder / "run" / "manifest.json").read_text())["captures"]
    assert [(row["rank"], row["state"], row["host"]) for row in rows] == [(0, "ok", "n1"), (1, "ok", "n2")]
    assert reports == [f"policy_worker_rank{rank}_step3-4_n{rank + 1}" for rank in (0, 1)], (
        done.stdout + done.stderr
    )
