"""From a job id or a folder, as a person types it, to the job: its number, its run folder, what Slurm
says.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.errors import UsageError
from rlprof_ops.job import run_folder
from rlprof_ops.job.knobs import Settings
from rlprof_ops.slurm import client
from rlprof_ops.slurm.client import SlurmJob

_FOLDER = re.compile(r"(?P<job>\d+(?:_\d+)?(?:\.r\d+)?|local-[\d-]+)-logs")


@dataclass(frozen=True)
class Job:
    """A job: `id` as in its run folder's name (`4711`, `4711.r1`). `run` is None while there is no run
    folder.
    """

    id: str
    run: Path | None
    slurm: SlurmJob | None

    @property
    def number(self) -> str:
        """Slurm's own number."""
        return self.id.partition(".")[0]


def find(text: str, env: Mapping[str, str] | None = None) -> Job:
    """The job that `text` names: a job id, its run folder, or run.json or manifest.json in it.

    Raises UsageError when there is neither a run folder nor a job that Slurm knows.
    """
    env = with_site(os.environ if env is None else env)
    try:
        folder = run_folder.run_folder(text, env).resolve()
    except UsageError:
        known = client.show(text)
        if known is None:
            raise
        return Job(known.id, None, known)
    job = job_of(folder)
    if job is None:
        raise UsageError(
            f"{text!r} is a folder, but not the run folder of a job (<job>-logs/ with a run.json)"
        )
    return Job(job, folder, client.show(job))


def folder_of(text: str, env: Mapping[str, str] | None = None) -> Path:
    """What a command reads: a path that exists as it is, else the run folder of that job id.

    Raises UsageError with the places that were tried.
    """
    return (
        Path(text)
        if os.path.exists(text)
        else run_folder.run_folder(text, with_site(os.environ if env is None else env))
    )


def with_site(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with BASE_LOG_DIR as the site's file has it, so that a job id is found from any folder."""
    found = dict(env)
    if not found.get("BASE_LOG_DIR"):
        with contextlib.suppress(UsageError, OSError):
            chosen = {name: env[name] for name in ("RLPROF_SITE_ENV",) if env.get(name)}
            found["BASE_LOG_DIR"] = Settings.load(chosen)["BASE_LOG_DIR"]
    return found


def job_of(folder: Path) -> str | None:
    """The job of a run folder: what its run.json says, else its name."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((folder / "run.json").read_bytes())["job"])
    named = _FOLDER.fullmatch(folder.name)
    return named["job"] if named else None
