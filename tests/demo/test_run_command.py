"""`rlprof run`: a program of one's own as a job of this machine, with a real Ray and no Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof_ops.job.knobs import import_path

pytestmark = [pytest.mark.ray, pytest.mark.whole, pytest.mark.timeout(600)]
PROGRAM = """
import sys
import ray
from rlprof_ops.runtime import profiler

ray.init()
print("cluster of", len(ray.nodes()))
prof = profiler.from_env(worker="driver", rank=0)
for step in range(1, 4):
    with prof.step(step), prof.range("train"):
        sum(range(1000))
prof.close()
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.long), 5])
def test_a_program_runs_in_a_ray_of_its_own_and_its_window_comes_home(tmp_path: Path, code: int):
    """With a site that lets other jobs harvest, which nobody would submit here."""
    pytest.importorskip("torch")
    folder = tmp_path / "my work"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "site.env").write_text("RLPROF_HARVEST_JOB=1\n")
    env = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "RLPROF"))}
    env |= {
        "PYTHONPATH": import_path(),
        "RLPROF_SITE_ENV": str(folder / "site.env"),
        "RLPROF_REPORT_SECONDS": "0",
        "RLPROF_RECORD": "0",
        "GPUS_PER_NODE": "0",
    }
    asked = ["--backend", "torch", "--steps", "2", "--workers", "controller", "--output-dir", "traces"]
    done = subprocess.run(
        [sys.executable, "-m", "rlprof_ops", "run", *asked, "--", sys.executable, "train.py", str(code)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "cluster of 1" in done.stdout
    [run] = folder.glob("local-*-logs")
    assert f"run folder: {run}" in done.stdout and (run / "manifest.json").exists()
    [report] = run.glob("profiles/torch/driver/rank0/driver_rank0_step2-2_*.pt.trace.json.gz")
    assert (folder / "traces" / report.name).exists(), "the controller's traces are at the top of the folder"
