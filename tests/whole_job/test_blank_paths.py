"""A job whose environment, checkout, request and run folder lie below folders with a blank in their name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.operate.login import Login
from tests.sandbox import Sandbox
from tests.whole_job.jobs import DEMO, HOME, NEEDS, Job

pytestmark = [
    *NEEDS,
    pytest.mark.timeout(1000),
]

REQUEST = {
    "captures": [
        {"backend": "nsight", "workers": ["policy_worker"], "steps": "3", "options": {"t": "nvtx"}},
        {"backend": "torch", "workers": ["generation_worker"], "steps": "3"},
    ]
}


@pytest.fixture
def tools(slurm: Sandbox) -> Path:
    """A virtual environment with this one's packages, a checkout and a request."""
    folder = slurm.shared / "my tools"
    venv, checkout = folder / "an environment", folder / "a checkout"
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
        packages = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        packages.rmdir()
        packages.symlink_to(sysconfig.get_path("purelib"))
        for name in ("python", "scripts", "env"):
            shutil.copytree(HOME / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(HOME / "ray.sub", checkout)
        (folder / "profile.yaml").write_text(json.dumps(REQUEST))
    return folder


@pytest.mark.parametrize("how", ["ray.sub", pytest.param("rlprof submit", marks=pytest.mark.long)])
def test_every_window_comes_home(slurm: Sandbox, tools: Path, how: str) -> None:
    venv, checkout, request = tools / "an environment", tools / "a checkout", tools / "profile.yaml"
    folder = slurm.shared / "my project"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    if how == "ray.sub":
        env = {"RLPROF_VENV": str(venv), "RLPROF_REQUEST": str(request), "COMMAND": DEMO}
        number = slurm.sbatch(["-N2", checkout / "ray.sub"], env=env, cwd=folder)
    else:
        me = Login(slurm, folder, rlprof=[str(venv / "bin" / "python"), "-m", "rlprof_ops"])
        me.env["PYTHONPATH"] = str(checkout / "python")
        said = me.type("submit", "-N2", "--request", str(request), "--", *DEMO.split())
        [number] = map(int, re.findall(r"(?m)^job (\d+) submitted$", said))
        assert f"the job uses the virtual environment of this rlprof, {venv}" in said
    job = Job(slurm, number, folder)

    state = job.wait()

    assert (state.state, state.exit_code) == ("COMPLETED", 0), job.say()
    states = job.states()
    assert len(states) == 3 and set(states.values()) == {"ok"}, job.say()
    assert (job.run / "report.html").is_file(), job.say()
    assert [process for node in slurm.nodes for process in slurm.processes(node)] == []
