"""All jobs of a user: those in Slurm's queue that a ray.sub started, and those that are remembered."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from rlprof_ops.errors import RlprofError
from rlprof_ops.job import attempt
from rlprof_ops.job.job_history import recall
from rlprof_ops.job.run_folder import Job, find
from rlprof_ops.operate.job_status import View, look
from rlprof_ops.slurm import client
from rlprof_ops.slurm.client import SlurmJob

COLUMNS = ("job", "name", "state", "time", "nodes", "step", "captures", "run folder")
_ENDED_MOST = 20
_REMEMBERED_MOST = 50
_QUICK_S = 3.0  # a person waits for a completion


def views(ended_too: bool = False) -> list[View]:
    """Oldest first. Jobs that have ended are those that `rlprof submit` remembers, the newest twenty."""
    queued = [job for job in client.mine() if job.is_ours] if client.available() else []
    found = [look(replace(_found(job), slurm=job)) for job in queued]
    if not ended_too:
        return found
    here = {job.id for job in queued}
    past = []
    for known in recall()[-_ENDED_MOST:]:
        if known.job not in here and Path(known.run).is_dir():
            past.append(look(find(known.run)))
    return [*past, *found]


def ids() -> list[str]:
    """My jobs, the latest first: those in Slurm's queue, then those that are remembered. For completion and
    for the job that is meant when none is named.
    """
    queued: list[str] = []
    if client.available():
        with contextlib.suppress(RlprofError):
            queued = [job.id for job in client.mine(timeout_s=_QUICK_S) if job.is_ours]
    known = recall()[-_REMEMBERED_MOST:]
    left = [past.job for past in known if attempt.newest(Path(past.run).parent, past.job)]
    submitted = [past.job for past in known if past.job in queued]
    order = [*left, *(job for job in queued if job not in submitted), *submitted]
    return list(dict.fromkeys(reversed(order)))


def _found(job: SlurmJob) -> Job:
    """The job with its run folder; none where it may not be read, so that the others are listed."""
    try:
        return find(job.id)
    except RlprofError:
        return Job(job.id, None, job)


def row(view: View) -> tuple[str, ...]:
    state = view.state if view.exit_code is None else f"{view.state} ({view.exit_code})"
    up = "" if view.nodes_up is None or view.has_ended else f"{view.nodes_up}/"
    return (
        view.job,
        view.name,
        state,
        view.elapsed,
        f"{up}{view.node_count}",
        "" if view.step is None else str(view.step),
        view.captures.said() if view.run_dir else "",
        view.run_dir or "",
    )
