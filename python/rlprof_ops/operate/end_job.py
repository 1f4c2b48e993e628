"""Ends a job in order: its step is told to drain, and only what does not end by itself is cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.job import attempt
from rlprof_ops.job.run_folder import Job
from rlprof_ops.operate.job_status import look
from rlprof_ops.slurm import client
from rlprof_ops.slurm.client import SlurmJob
from rlprof_ops.words import limit

_LOOK_S = 1.0
_KILL_S = 90.0  # Slurm's KillWait and the epilog


def stop(
    job: Job,
    timeout_s: float,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Drain, wait `timeout_s`, then cancel. Gives how: "ended" before, "cancelled" in the queue, "drained",
    "killed".

    Raises UsageError for a job that Slurm does not know, and may run without it; RlprofError when it does not
    end at all.
    """
    known = job.slurm
    if known is None and job.id.startswith(attempt.LOCAL):
        if not look(job).has_ended:
            raise UsageError(f"job {job.id} is none of Slurm's: end it with Ctrl-C where it was started")
        say(f"job {job.id} has ended already")
        return "ended"
    if known is None:
        if not client.available():
            raise UsageError(f"job {job.id}: Slurm's commands are not on PATH; stop it from a login node")
        raise UsageError(f"job {job.id} is not known to Slurm any more: it has ended. rlprof status {job.id}")
    if known.ended:
        say(f"job {job.id} has ended already ({known.state})")
        return "ended"
    if known.waiting:
        client.cancel(known)
        say(f"job {job.id} was waiting in Slurm's queue and is cancelled")
        return "cancelled"
    if client.signal_step(known, "TERM"):
        say(
            f"job {job.id}: told to drain; windows are closed and reports come home, up to {limit(timeout_s)}"
        )
        if _wait(job.number, timeout_s, sleep, clock) is not None:
            return "drained"
        say(f"job {job.id} has not ended within {limit(timeout_s)}")
    say(f"job {job.id}: cancelled")
    client.cancel(known)
    if _wait(job.number, _KILL_S, sleep, clock) is None:
        raise RlprofError(
            f"job {job.id} still runs {limit(_KILL_S)} after scancel; ask the cluster's operator"
        )
    return "killed"


def _wait(
    number: str, seconds: float, sleep: Callable[[float], None], clock: Callable[[], float]
) -> SlurmJob | str | None:
    """The ended job, "forgotten" when Slurm knows it no more, None after `seconds`."""
    until = clock() + seconds
    while clock() < until:
        known = client.show(number)
        if known is None or known.ended:
            return known or "forgotten"
        sleep(_LOOK_S)
    return None
