"""The name of one attempt of a job: `4711`, and `4711.r1` after its first requeue."""

from __future__ import annotations

import re
from pathlib import Path

LOCAL = "local-"  # so begins the id of a run without Slurm
NAME = re.compile(rf"(?P<job>\d+(?:_\d+)?|{LOCAL}[\d-]+)(?:\.r(?P<number>\d+))?")
_LOGS = "-logs"


def name(job: str, number: int) -> str:
    """`("4711", 1)` -> `4711.r1`; the attempt 0 has the job's own name."""
    return f"{job}.r{number}" if number else job


def job_of(attempt: str) -> str:
    """`4711.r1` -> `4711`."""
    return attempt.partition(".r")[0]


def number_of(attempt: str) -> int:
    """`4711.r1` -> 1, `4711` -> 0."""
    found = NAME.fullmatch(attempt)
    return int(found["number"] or 0) if found else 0


def folder_name(attempt: str) -> str:
    """The run folder's own name."""
    return attempt + _LOGS


def of_folder(folder: Path) -> str | None:
    """The attempt that a run folder's name tells; None for another name."""
    attempt = folder.name.removesuffix(_LOGS)
    return attempt if folder.name.endswith(_LOGS) and NAME.fullmatch(attempt) else None


def first(folder: Path) -> Path:
    """The run folder of its job's first attempt, beside `folder`; itself under a name that tells none."""
    attempt = of_folder(folder)
    return folder.with_name(folder_name(job_of(attempt))) if attempt else folder


def newest(base: Path, job: str) -> Path | None:
    """The run folder of the latest attempt of `job` in `base`; None without one."""
    found = [folder for folder in base.glob(f"{job}.r*{_LOGS}") if of_folder(folder) and folder.is_dir()]
    first = base / folder_name(job)
    if first.is_dir():
        found.append(first)
    return max(found, key=lambda folder: number_of(of_folder(folder) or ""), default=None)
