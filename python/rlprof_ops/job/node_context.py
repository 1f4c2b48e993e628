"""Where a supervisor is: the job, its node, the head."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rlprof_ops import env_names
from rlprof_ops.host.contained_dir import PinnedDir
from rlprof_ops.job.folders import NodeFolder, RunFolder, pinned_run


def node_name(env: Mapping[str, str]) -> str:
    """This node as Slurm calls it, else as whoever started the job or the machine itself does."""
    return env.get("SLURMD_NODENAME") or env.get(env_names.NODE) or os.uname().nodename


@dataclass(frozen=True)
class NodeContext:
    """Where this supervisor is: the job, this node, and the head."""

    job: str
    node: str
    ip: str
    head_ip: str
    gcs_port: int
    control_port: int
    is_head: bool
    nodes: tuple[str, ...]
    run: RunFolder
    folder: NodeFolder
    gpus: int
    token: str

    @property
    def index(self) -> int:
        """This node's number among the nodes of the job, the head's 0."""
        return self.nodes.index(self.node) if self.node in self.nodes else 0

    def pinned_run(self) -> PinnedDir:
        """The run folder to write to: another one under its name is refused."""
        return pinned_run(self.run.path, self.folder.path)
