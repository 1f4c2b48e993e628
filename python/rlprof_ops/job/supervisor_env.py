"""How a node's supervisor is started where no batch script does it: the command, its Python, and what it is
told of its job, in the variables that scripts/lib/job.sh sets too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.knobs import home, import_path


@dataclass(frozen=True)
class HeadAddress:
    """Where the head's Ray and its supervisor listen."""

    ip: str
    gcs_port: int
    control_port: int


def supervisor_env(
    job: str,
    run: RunFolder,
    node: str,
    nodes: Sequence[str],
    head: HeadAddress,
    earlier: Sequence[int] = (),
    *,
    harvest_job: bool = False,
    slurm_counts_gpus: bool = False,
    kill_wait: str = "",
) -> dict[str, str]:
    """The variables of one node's supervisor.

    Args:
        job: with its attempt, as in the run folder's name.
        nodes: all of the job, the head first.
        earlier: the attempts of the job before this one that have a manifest.
        harvest_job: whether a job of its own harvests and reports; the head does it where not, whatever the
            knobs say.
        slurm_counts_gpus: then a job that asked Slurm for no GPUs gets none.
        kill_wait: Slurm's, in which the drain of a job has to end that it cancels; empty outside Slurm.
    """
    return {
        env_names.JOB: job,
        env_names.NODE: node,
        env_names.NODES: " ".join(nodes),
        env_names.RUN_DIR: str(run.path),
        env_names.HEAD_IP: head.ip,
        env_names.GCS_PORT: str(head.gcs_port),
        env_names.CONTROL_PORT_CHOSEN: str(head.control_port),
        env_names.EARLIER_ATTEMPTS: " ".join(map(str, earlier)),
        env_names.BEGAN: str(time.time()),
        env_names.SLURM_COUNTS_GPUS: str(int(slurm_counts_gpus)),
        env_names.KILL_WAIT: kill_wait,
        "RLPROF_HARVEST_JOB": str(int(harvest_job)),
    }


def node_command(*module: str) -> list[str]:
    """What runs a node's supervisor, or another module of ours with its arguments, as a node's task."""
    return ["bash", str(home() / "scripts" / "node.sh"), *module]


def python_environment(env: Mapping[str, str], *, on_path: bool = True) -> dict[str, str]:
    """Make node.sh use this interpreter, unless the knobs name another; `on_path`: COMMAND='python …' too."""
    path = os.pathsep.join(filter(None, [import_path(), env.get("PYTHONPATH", "")]))
    more = {"PYTHONPATH": path, env_names.HOME: str(home())}
    if not names_python(env):
        more["RLPROF_PYTHON"] = sys.executable
        if on_path:
            first = str(Path(sys.executable).parent)
            more["PATH"] = os.pathsep.join([first, env.get("PATH", os.defpath)])
    return {**env, **more}


def names_python(env: Mapping[str, str]) -> bool:
    """Whether the knobs name the Python of the job."""
    return bool(env.get("RLPROF_VENV") or env.get("RLPROF_PYTHON"))
