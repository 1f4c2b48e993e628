"""Where one task of a submitit job sits: which job, which attempt, which node, beside whom."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.errors import UsageError
from rlprof_ops.host import background
from rlprof_ops.job import attempt

LOOK_S = 15.0  # for one look at shared storage


@dataclass(frozen=True)
class TaskContext:
    """`job` carries the attempt, as in docs/contracts.md; `base` gets the run folder; `earlier`: run
    folders of past attempts.
    """

    cluster: str
    job: str
    base: Path
    rank: int
    nodes: tuple[str, ...]
    node: str
    earlier: tuple[Path, ...] = ()

    @property
    def run_dir(self) -> Path:
        return self.base / attempt.folder_name(self.job)


def job_name(cluster: str, job_id: str) -> str:
    """The job part of a run folder's name: Slurm's id, or `local-<digits>` for submitit's local and debug
    executors.
    """
    return job_id if cluster == "slurm" else "local-" + re.sub(r"\D", "", job_id)


def take(log_dir: str | None) -> TaskContext:
    """This task's seat, from submitit's environment; outside a submitit job this machine alone is the
    cluster.

    Raises UsageError when the job has more than one task on a node.
    """
    try:
        import submitit

        env = submitit.JobEnvironment()
    except (ImportError, RuntimeError):  # called directly
        return _local("none", str(os.getpid()), Path(log_dir or "."))
    base = Path(log_dir or os.environ.get("SUBMITIT_FOLDER") or ".")  # the debug executor sets no folder
    if "%" in base.name:
        base = env.paths.folder
    if env.cluster != "slurm":
        if env.num_tasks > 1:
            raise UsageError(
                f"tasks_per_node={env.num_tasks}: RayJob takes one task a node; set tasks_per_node=1"
            )
        return _local(env.cluster, env.job_id, base)
    if env.num_tasks != env.num_nodes:
        raise UsageError(
            f"{env.num_tasks} tasks on {env.num_nodes} nodes: RayJob takes one task a node; set"
            " tasks_per_node=1"
        )
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    names = [attempt.name(env.job_id, number) for number in range(restarts + 1)]
    return TaskContext(
        cluster="slurm", job=names[-1], base=base.absolute(), rank=env.node, nodes=tuple(env.hostnames),
        node=os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
        earlier=_existing(base.absolute(), names[:-1]),
    )  # fmt: skip


def _local(cluster: str, job_id: str, base: Path) -> TaskContext:
    """submitit starts a local job again under the same id, so the attempt is the first number without a
    folder.
    """
    base = base.absolute()
    number = 0
    while (base / attempt.folder_name(attempt.name(job_name(cluster, job_id), number))).exists():
        number += 1
    names = [attempt.name(job_name(cluster, job_id), earlier) for earlier in range(number + 1)]
    node = os.uname().nodename
    return TaskContext(cluster, names[-1], base, 0, (node,), node, _existing(base, names[:-1]))


def _existing(base: Path, names: list[str]) -> tuple[Path, ...]:
    folders = (base / attempt.folder_name(name) for name in names)
    return tuple(folder for folder in folders if _is_run(folder))


def _is_run(folder: Path) -> bool:
    """Whether it is a run folder; not where the storage does not answer, which keeps no attempt waiting."""
    with contextlib.suppress(TimeoutError):
        return background.in_time((folder / "run.json").is_file, seconds=LOOK_S)
    return False
