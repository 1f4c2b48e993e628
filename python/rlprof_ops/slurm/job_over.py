"""Whether and when a job ends: one that is over although its run.json says that it runs, since the head that
would have written it is gone; one that is being ended; one whose time limit comes.
"""

from __future__ import annotations

import os
import re
import subprocess

from rlprof_ops.host import command
from rlprof_ops.slurm.client import ENDED, record_of

REQUEUED = "REQUEUED"  # as an earlier attempt ended
_TIMEOUT_S = 10.0
_SLURM_JOB = re.compile(r"(\d+(?:_\d+)?)(?:\.r(\d+))?")  # as attempt.NAME of the job room has it


def is_cancelled(job: str) -> bool:
    """Whether Slurm has begun to end `job`, so that what still runs is killed KillWait seconds after its
    SIGTERM.

    A signal to a step alone (`scancel --signal=TERM 4711.0`) looks the same to a process, but has no such
    limit.
    """
    states = ("COMPLETING", "CANCELLED", "PREEMPTED")
    record = _record(job, _TIMEOUT_S / 2)
    return any(f"JobState={state} " in record for state in states)


def ends_at(job: str, timeout_s: float = _TIMEOUT_S) -> float | None:
    """When Slurm ends `job` at its time limit (Unix time); None for one that does not run, and when Slurm
    does not say.

    It moves when the job is suspended or gets another limit, which `SLURM_JOB_END_TIME` does not.
    """
    found = re.search(r" JobState=RUNNING .* EndTime=(\d+) ", _record(job, timeout_s))
    return float(found[1]) if found else None


def ended_as(job: str) -> str | None:
    """Slurm's word for how `job` (an attempt: `4711`, `4711.r1`) ended; "" while it runs, None when nobody
    can tell.

    `unknown` when Slurm has forgotten the job, `REQUEUED` when a later attempt has begun.
    """
    match, done = _SLURM_JOB.fullmatch(job), _show(job, _TIMEOUT_S)
    if match is None or done is None:
        return None
    return read_state(record_of(done.stdout, match[1]), done.returncode, done.stderr, int(match[2] or 0))


def _record(job: str, timeout_s: float) -> str:
    """Slurm's record of `job`; empty when nobody can tell."""
    match, done = _SLURM_JOB.fullmatch(job), _show(job, timeout_s)
    return record_of(done.stdout, match[1]) if match and done else ""


def _show(job: str, timeout_s: float) -> subprocess.CompletedProcess[str] | None:
    """What Slurm says of `job`, times as Unix seconds; None when it is no job of Slurm's."""
    match = _SLURM_JOB.fullmatch(job)
    if match is None:
        return None
    env = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    return command.run(["scontrol", "-o", "show", "job", match[1]], timeout_s, env)


def read_state(shown: str, code: int, said: str, attempt: int) -> str | None:
    """The same from what `scontrol -o show job` printed."""
    if code:
        return "unknown" if "Invalid job id" in said else None
    words = dict(word.split("=", 1) for word in shown.split() if "=" in word)
    restarts = words.get("Restarts", "0")
    if restarts.isdigit() and int(restarts) > attempt:
        return REQUEUED
    state = words.get("JobState", "")
    return state if state in ENDED else ""
