"""What a node's supervisor is told of its job, in the variables that scripts/lib/job.sh sets too."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rlprof_ops import env_names
from rlprof_ops.job.folders import RunFolder


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
) -> dict[str, str]:
    """The variables of one node's supervisor.

    Args:
        job: with its attempt, as in the run folder's name.
        nodes: all of the job, the head first.
        earlier: the attempts of the job before this one that have a manifest.
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
    }
