"""Where the Ray dashboard of a job listens, and the tunnel to it: it has no login of its own, so it stays
on the head's loopback.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import foreign
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.run_folder import Job

# What `ray start --head` prints; colours are taken out before.
_SAID = re.compile(r"dashboard at\s*\n[^\n]*?(?P<host>[\w.\[\]-]+):(?P<port>\d+)\s*$", re.MULTILINE)
_HEAD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Dashboard:
    """`host:port` as Ray said it, on the node `head`; `token` is the file that holds Ray's token."""

    head: str
    host: str
    port: int
    token: Path

    def tunnel(self, port: int) -> list[str]:
        """The ssh line on a login node: a user's ssh to the head of the own job is what sites allow."""
        return ["ssh", "-N", "-L", f"127.0.0.1:{port}:{self.host}:{self.port}", self.head]

    def advice(self, port: int) -> list[str]:
        login = f"{getpass.getuser()}@{os.uname().nodename}"
        jump = ["ssh", "-N", "-J", login, *self.tunnel(port)[2:-1], f"{getpass.getuser()}@{self.head}"]
        return [
            f"Ray's dashboard listens on {self.host}:{self.port} of {self.head}. From this machine:",
            f"  {shlex.join(self.tunnel(port))}",
            "From your own, through this one:",
            f"  {shlex.join(jump)}",
            f"then http://127.0.0.1:{port}. Where it asks for a token: {self.token}",
        ]


def locate(job: Job) -> Dashboard:
    """Raises UsageError when the job runs without one, RlprofError when it does not run or has not said
    yet.
    """
    if job.run is None or (job.slurm is not None and job.slurm.waiting):
        raise RlprofError(f"job {job.id} has not started yet")
    if job.slurm is not None and job.slurm.ended:
        raise RlprofError(f"job {job.id} has ended ({job.slurm.state})")
    head = foreign.text(foreign.read_object(job.run / "run.json").get("head"))
    if not head:
        raise RlprofError(f"job {job.id} has no run.json yet that names its head ({job.run}/run.json)")
    if not _HEAD.fullmatch(head):
        raise RlprofError(f"{job.run}/run.json names {head!r} as the head, which is no name of a node")
    said = _SAID.search(foreign.tail(job.run / "logs" / head / "ray_start.log", 1 << 20))
    if said is not None:
        host = "127.0.0.1" if said["host"] in ("0.0.0.0", "localhost") else said["host"]
        return Dashboard(head, host, int(said["port"]), RunFolder(job.run).token)
    if _switched_off(job.run):
        raise UsageError(
            f"job {job.id} runs without Ray's dashboard; submit it with --set RLPROF_DASHBOARD=1"
        )
    raise RlprofError(
        f"job {job.id}: Ray's start has not come home yet (logs/{head}/ray_start.log); try again in half a"
        " minute"
    )


def _switched_off(run: Path) -> bool:
    environment = foreign.tail(RunFolder(run).attach_env)
    return bool(environment) and "RLPROF_DASHBOARD=1" not in environment
