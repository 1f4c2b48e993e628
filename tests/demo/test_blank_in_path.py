"""A job whose environment and run folder lie below a folder with a blank in its name, as a checkout may: Ray
itself parts the lines that start its client server and preload its allocator at blanks.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from tests.needs import need

from rlprof_ops.job.knobs import import_path

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(900)]

PROGRAM = """
import sys
from pathlib import Path
from rlprof_ops.demo.local_job import run_local
sys.exit(run_local(Path(sys.argv[1]), {}, print).exit_code)
"""
REQUEST = {
    "captures": [
        {"backend": "nsight", "workers": ["policy_worker"], "steps": "2", "options": {"t": "nvtx"}},
        {"backend": "torch", "workers": ["generation_worker"], "steps": "2"},
    ]
}


def test_every_window_comes_home(tmp_path: Path) -> None:
    need("nsys")
    folder = tmp_path / "my work"
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=250)
    packages = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.rmdir()
    packages.symlink_to(sysconfig.get_path("purelib"))
    python = venv / "bin" / "python"
    (folder / "profile.yaml").write_text(json.dumps(REQUEST))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "RAY_"))}

    done = subprocess.run(
        [python, "-c", PROGRAM, folder],
        env=env
        | {
            "PYTHONPATH": import_path(),
            "COMMAND": f"{shlex.quote(str(python))} -m rlprof_ops.demo --steps 3",
            "RLPROF_REQUEST": str(folder / "profile.yaml"),
            "RLPROF_REPORT_SECONDS": "0",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    [run] = folder.glob("local-*-logs")
    states = {
        capture["id"]: capture["state"]
        for capture in json.loads((run / "manifest.json").read_text())["captures"]
    }
    assert sorted(set(states.values())) == ["ok"] and len(states) == 3, said
