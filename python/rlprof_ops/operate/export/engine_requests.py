"""The requests that a run's engines finished, each with the step that had it generated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlprof_ops.analyze.whole_run.last_requests import ReplicaRequests, read_replicas, request_steps
from rlprof_ops.analyze.whole_run.records import read_all
from rlprof_ops.analyze.whole_run.section import driver_of
from rlprof_ops.runtime.request_log import EngineRequest


def requests_of(run: Path) -> Iterator[tuple[ReplicaRequests, int | None, EngineRequest]]:
    """Replica by replica, in the order in which they were done; the step is None where none generated."""
    replicas = read_replicas(run)
    driver = driver_of(read_all(run, (), 1)) if replicas else None
    for replica in replicas:
        steps = request_steps(driver, replica) if driver else [None] * len(replica.rows)
        for step, row in zip(steps, replica.rows, strict=True):
            yield replica, step, row
