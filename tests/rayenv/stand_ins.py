"""What a runtime-env plugin meets: Ray's context of one worker, and an environment without a job's words."""

from __future__ import annotations

import os
import sys


class Context:
    """The part of Ray's RuntimeEnvContext that plugins change."""

    def __init__(self, py_executable: str = sys.executable, **env_vars: str) -> None:
        self.py_executable = py_executable
        self.env_vars = dict(env_vars)
        self.command_prefix: list[str] = []


def own_environment(**more: str) -> dict[str, str]:
    """This process's environment without what a job or a launcher says, with the package on PYTHONPATH."""
    from rlprof_ops.runtime.process.worker_identity import RANK_VARIABLES

    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RLPROF_", "NRL_", "SLURM_", "RAY_")) and name not in RANK_VARIABLES
    }
    return {**env, "PYTHONPATH": os.pathsep.join(sys.path), **more}
