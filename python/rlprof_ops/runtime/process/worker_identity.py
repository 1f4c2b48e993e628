"""Who this process is and where its files go: docs/contracts.md, "The node folder"."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from rlprof_ops import env_names
from rlprof_ops.backends import report_names
from rlprof_ops.backends.contract import LEADERS
from rlprof_ops.runtime.plain_values import plain_name, whole_number

DEFAULT_FOLDER = "rlprof-profiles"
# What COMMAND is called, and what its process may be called once an adapter knows the trainer.
DRIVER, CONTROLLER = LEADERS
DRIVERS = (*LEADERS, "trainer", "TaskRunner", "task_runner")
# Where a launcher says a process's rank: ours, torchrun's (and verl's and NeMo RL's), MPI's, Slurm's. The
# first that is set counts; Slurm's is last, since mpirun's processes inherit that of the batch script.
RANK_VARIABLES = (
    env_names.RANK,
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
)
# What a process has of its own: another one that inherits these is somebody else.
OF_ONE_PROCESS = (
    env_names.WORKER,
    env_names.RANK,
    env_names.NSYS_SESSION,
    env_names.NSYS_RANGE,
    env_names.NOT_WRAPPED,
    env_names.SESSION_PID,
    env_names.SESSION_OPTIONS,
)
_SAID_OF_THE_WORKER = 2  # the first ones; in a Ray worker the others tell of whoever ran `ray start`


class WorkerKey(TypedDict):
    """The key `rlprof` of an actor's runtime env: who it is; rank None: its own variable tells it."""

    worker: str
    rank: int | None


@dataclass(frozen=True)
class WorkerIdentity:
    """One training process and its folders. `root` is what event paths are relative to."""

    worker: str
    rank: int
    world_size: int | None
    host: str
    pid: int
    root: Path
    tmp: Path
    events: Path

    @property
    def stem(self) -> str:
        """`<worker>_rank<R>_<host>_<pid>`: unique on shared storage."""
        return report_names.process_name(self.worker, self.rank, self.host, self.pid)


def find_identity(
    worker: str | None, rank: int | None, world_size: int | None, env: Mapping[str, str]
) -> WorkerIdentity:
    """The place of this process. What is not given comes from the plugin's variables, then from the
    launcher's.

    Folders: `RLPROF_NODE_DIR`; without it the run folder; without that `./rlprof-profiles`.
    """
    worker = plain_name(worker or env.get(env_names.WORKER) or "worker")
    rank = rank_from(env) if rank is None else whole_number(rank)
    world_size = whole_number(env.get("WORLD_SIZE") if world_size is None else world_size)
    host = env.get(env_names.NODE) or socket.gethostname()
    node_dir, run_dir = env.get(env_names.NODE_DIR), env.get(env_names.RUN_DIR)
    if node_dir or not run_dir:
        root = Path(node_dir or DEFAULT_FOLDER).absolute()
        own = root
    else:  # no supervisor copies from this node: write where the run folder wants it
        root = Path(run_dir).absolute()
        own = root / "nodes" / report_names.safe(host)
    return WorkerIdentity(worker, rank or 0, world_size, host, os.getpid(), root, own / "tmp", own / "events")


def rank_from(env: Mapping[str, str]) -> int | None:
    """The rank of a process with these variables, as its launcher says it; None when it says nothing."""
    in_ray = "RAY_RAYLET_PID" in env
    for name in RANK_VARIABLES[: _SAID_OF_THE_WORKER if in_ray else None]:
        if re.fullmatch(r"\d{1,9}", str(env.get(name, ""))):
            return int(env[name])
    return None


def is_ray_worker() -> bool:
    """Whether Ray has started this process, for actors or tasks."""
    return any(os.path.basename(word) == "default_worker.py" for word in sys.orig_argv)


def in_ray_task() -> bool:
    """Whether the code that asks is a task of Ray's, not an actor's or a driver's."""
    if "ray" not in sys.modules or not is_ray_worker():
        return False
    import ray

    return ray.get_runtime_context().get_actor_id() is None
