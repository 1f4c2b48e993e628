"""What run.json says of a job when it begins, whoever leads it: a supervisor, or `rlprof wrap` alone."""

from __future__ import annotations

import getpass
import os
import platform
import time
from typing import TYPE_CHECKING, Any

from rlprof_ops.extras import installed_version
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.redact import redact_text
from rlprof_ops.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlprof_ops.request import ProfileRequest


def beginning(
    job: str, nodes: Sequence[str], head: str, command: str, request: ProfileRequest, notes: Sequence[str]
) -> dict[str, Any]:
    """The record of a job that begins; `notes` are of its request."""
    return {
        "schema": 1,
        "job": job,
        "job_name": os.environ.get("SLURM_JOB_NAME", ""),
        "user": _user(),
        "nodes": list(nodes),
        "head": head,
        "framework": None,
        "command": redact_text(command),
        "request": request.to_dict(),
        "request_notes": list(notes),
        "world": {},
        "versions": _versions(),
        "submit_dir": os.environ.get("SLURM_SUBMIT_DIR", os.getcwd()),
        "started_ns": time.time_ns(),
        "driver": {"started_ns": None, "ended_ns": None, "exit_code": None, "signal": None},
        "end": {"cause": str(EndCause.RUNNING), "detail": "", "phases_s": {}},
    }


def driver_end(code: int) -> dict[str, Any]:
    """How the driver ended, now: `code` as a shell says it."""
    return {
        "ended_ns": time.time_ns(),
        "exit_code": code,
        "signal": code - 128 if code > 128 else None,
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in many containers
        return str(os.getuid())


def _versions() -> dict[str, str]:
    found = {"rlprof_ops": __version__, "python": platform.python_version()}
    named = ((name, installed_version(name)) for name in ("ray", "torch", "nvtx"))
    return found | {name: version for name, version in named if version}
