"""Where a job's things are: the run folder on shared storage and the private folder on each node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.job import attempt


def job_name(env: Mapping[str, str]) -> str:
    """`4711`, `4711.r1` after the first requeue, `local-<pid>` outside Slurm."""
    job = env.get("SLURM_JOB_ID")
    if not job:
        return f"local-{os.getpid()}"
    return attempt.name(job, int(env.get("SLURM_RESTART_COUNT") or 0))


@dataclass(frozen=True)
class RunFolder:
    """The run folder, `<BASE_LOG_DIR>/<job>-logs`."""

    path: Path

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def secrets(self) -> Path:
        return self.path / ".secrets"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def token(self) -> Path:
        return self.secrets / "ray_token"

    def create(self) -> None:
        for folder in (self.path, self.logs, self.path / "nodes", self.path / "profiles"):
            folder.mkdir(parents=True, exist_ok=True)
        # Made with the job: whoever may write here can have windows opened in the workers.
        self.control.mkdir(mode=0o700, exist_ok=True)
        self.secrets.mkdir(mode=0o700, exist_ok=True)


@dataclass(frozen=True)
class NodeFolder:
    """This job's folder on this node, readable by its user alone."""

    path: Path

    @property
    def ray(self) -> Path:
        return self.path / "ray"

    @property
    def tmp(self) -> Path:
        return self.path / "tmp"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def live(self) -> Path:
        """Logs that the sync brings to `logs/` of the run folder every second."""
        return self.path / "live"

    @property
    def keep(self) -> Path:
        """Records that the run folder did not take; drain.clear spares it."""
        return self.path / "keep"

    @property
    def plugin_marker(self) -> Path:
        return self.path / "plugin_loaded"

    def create(self) -> None:
        """Make it afresh. Raises OSError when somebody else owns the name."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        owner = self.path.lstat()
        if owner.st_uid != os.getuid() or self.path.is_symlink():
            raise PermissionError(f"{self.path} belongs to somebody else")
        self.path.chmod(0o700)
        for folder in (
            self.ray,
            self.tmp,
            self.logs,
            self.live,
            self.path / "profiles",
            self.path / "events",
        ):
            folder.mkdir(exist_ok=True)


def node_folder(root: Path, job: str, node: str) -> NodeFolder:
    """`<root>/rlprof-<uid>-<job>`; a node's name joins where several nodes share one /tmp (local runs)."""
    return NodeFolder(root / f"rlprof-{os.getuid()}-{job}{node and '-' + node}")
