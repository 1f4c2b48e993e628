"""Programs of a test, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(program: str, folder: Path, *argv: str, **variables: str) -> str:
    """What it printed; RLPROF_NODE_DIR is `folder`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RLPROF_")}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), "RLPROF_NODE_DIR": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, *argv],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-3000:])
    return done.stdout
