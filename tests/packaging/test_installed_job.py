"""From a wheel to a finished job: install, init, submit --wait on two nodes, without a checkout in sight."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.packaging.conftest import run

TRAINER = Path(__file__).parents[1] / "submitit_jobs" / "trainer.py"
PROFILE = 'captures:\n  - {backend: memory, workers: [policy_worker], ranks: [0], steps: "2,4:6", options: {host: "true"}}\n'


@pytest.mark.slurm
@pytest.mark.ray
@pytest.mark.timeout(280)
def test_an_installed_rlprof_runs_a_job(slurm, wheel):
    place = slurm.shared / "installed"
    venv.create(place / "venv", with_pip=False, symlinks=True)
    run(sys.executable, "-m", "pip", "--python", place / "venv/bin/python", "install", "--no-deps", "--no-index", "--quiet", wheel)
    packages = next((place / "venv/lib").glob("python*/site-packages"))
    (packages / "ray.pth").write_text(sysconfig.get_path("purelib") + "\n")  # Ray and the rest, from where the tests have them
    (place / "trainer.py").write_text(TRAINER.read_text())
    env = {"PATH": f"{place}/venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(place)}

    slurm.run(["rlprof", "init", place / "project"], env=env)
    (place / "project" / "profile.yaml").write_text(PROFILE)
    done = slurm.run(
        ["rlprof", "submit", "-N", "2", "--request", "project/profile.yaml", "--wait", "--", "python", "trainer.py", "--nodes", "2"],
        env=env, cwd=place, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 captures planned: 2 ok" in done.stdout
