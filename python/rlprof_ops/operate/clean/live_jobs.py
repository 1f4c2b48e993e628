"""Which jobs wait or run, as far as that can be told on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof_ops.host import foreign, processes
from rlprof_ops.job import attempt
from rlprof_ops.operate.recorded import ended
from rlprof_ops.slurm import client

_NO_SLURM = "whether it waits or runs is not known here: squeue is not on PATH"


@dataclass(frozen=True)
class LiveJobs:
    """`queued`: my jobs that Slurm knows, None where there is no Slurm to ask; `here`: those that have a
    process on this machine.
    """

    queued: frozenset[str] | None
    here: frozenset[str]

    @classmethod
    def now(cls) -> LiveJobs:
        """Raises RlprofError when Slurm is here and does not answer: a job could still run."""
        queue = None
        if client.available():  # an element of an array goes by both of its numbers
            queue = frozenset(name for job in client.mine() for name in (job.id, job.alone))
        return cls(queue, frozenset(processes.jobs_here()))

    def has(self, job: str) -> bool:
        """Whether the attempt `job` has a process here, or its job waits or runs."""
        return job in self.here or attempt.job_of(job) in (self.queued or ())

    def run_in_doubt(self, job: str, run: Path) -> str:
        """Why nobody here can say whether the job of a run folder has ended; "" where it has."""
        if ended(run):
            return ""
        if not job.startswith(attempt.LOCAL):
            return _NO_SLURM if self.queued is None else ""
        hosts = _hosts_of(foreign.read_object(run / "run.json")) - {socket.gethostname()}
        return f"whether it runs is not known here: it began on {sorted(hosts)[0]}" if hosts else ""

    def node_in_doubt(self, job: str, run: Path | None) -> str:
        """The same of a node folder, when no process of the job is here; `run`: its run folder."""
        known = job.startswith(attempt.LOCAL) or self.queued is not None or (run is not None and ended(run))
        return "" if known else _NO_SLURM


def runs_here(record: dict[str, Any]) -> bool:
    """Whether a process that `rlprof wrap` has noted in run.json has not ended and is on this machine."""
    return any(
        host == socket.gethostname() and pid.isdigit() and processes.start_time(int(pid)) is not None
        for host, pid in _not_ended(record)
    )


def _hosts_of(record: dict[str, Any]) -> set[str]:
    """Where a run without Slurm had the processes that have not said that they ended."""
    if record.get("processes"):
        return {host for host, _ in _not_ended(record)}
    return {foreign.text(record.get("head")) or "another machine"}


def _not_ended(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Host and pid of each process that `rlprof wrap` has noted and that has left no exit code."""
    for key, told in foreign.an_object(record.get("processes")).items():
        if foreign.an_object(told).get("exit_code") is None:
            host, _, pid = key.rpartition(":")
            yield host, pid
