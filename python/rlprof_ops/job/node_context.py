"""Where a supervisor is: the job, its node, the head."""

from __future__ import annotations

from dataclasses import dataclass

from rlprof_ops.job.folders import NodeFolder, RunFolder


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
