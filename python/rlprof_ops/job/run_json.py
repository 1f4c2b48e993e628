"""run.json: its rows, and what it says of a job when it begins, whoever leads it: a supervisor, or
`rlprof wrap` alone.
"""

from __future__ import annotations

import getpass
import os
import platform
import time
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from rlprof_ops.extras import installed_version
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.record_schema import DRAFT, row_schema
from rlprof_ops.redact import MASK, holds_secret, redact_text
from rlprof_ops.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlprof_ops.request import ProfileRequest

SCHEMA = 1
BY_TRAINER = "trainer"
Instant = Annotated[int | None, {"minimum": 0, "description": "UTC nanoseconds"}]
Moment = Annotated[int, {"minimum": 0, "description": "UTC nanoseconds"}]


class _Driver(TypedDict):
    started_ns: Instant
    ended_ns: Instant
    exit_code: Annotated[int | None, {"description": "as a shell says it"}]
    signal: Annotated[int | None, {"description": "the number of the signal that ended it"}]


class DriverRow(_Driver, total=False):
    name: Annotated[str, {"description": "of a run of `rlprof wrap`: the program behind it"}]


class _End(TypedDict):
    cause: Annotated[str, {"enum": [str(cause) for cause in EndCause][:-3]}]
    detail: Annotated[str, {"description": "the words of whatever ended it, without secrets"}]
    phases_s: Annotated[dict[str, float], {"description": "what the drain did -> seconds"}]


class EndRow(_End, total=False):
    drain_s: Annotated[float, {"minimum": 0}]
    lost_nodes: list[str]


class TakeoverRow(TypedDict):
    """A supervisor that was killed, and followed by another one."""

    node: str
    t_ns: Moment
    how: Annotated[str, {"description": "how the one before ended"}]


class _Wrapped(TypedDict):
    started_ns: Instant
    exit_code: int | None


class ProcessRow(_Wrapped, total=False):
    """One process of a run of `rlprof wrap`."""

    reports: Annotated[list[str], {"description": "in the run folder: whose secrets it has taken out"}]


class _Begun(TypedDict):
    schema: Annotated[int, {"const": SCHEMA}]
    job: Annotated[str, {"description": "Slurm job id, `.rN` after the Nth requeue, or local-<pid>"}]
    job_name: str
    user: str
    nodes: Annotated[list[str], {"description": "empty outside a job"}]
    head: str
    framework: Annotated[str | None, {"description": "RLPROF_TRAINER"}]
    command: Annotated[str, {"description": "without secrets"}]
    request: Annotated[
        dict[str, Any],
        {"description": "what to profile: `rlprof schema request`; secrets in `env` and `options` are ***"},
    ]
    request_notes: Annotated[
        list[str], {"description": "what the request overrules, and what earlier attempts brought home"}
    ]
    world: Annotated[dict[str, int], {"description": "worker name -> number of ranks"}]
    versions: dict[str, str]
    submit_dir: str
    started_ns: Moment
    driver: DriverRow
    end: EndRow


class RunRow(_Begun, total=False):
    """The whole file."""

    ended_ns: Moment
    waiting: Annotated[str, {"description": "what the driver waits for and no node has; empty: nothing"}]
    request_by: Annotated[
        str, {"enum": [BY_TRAINER], "description": "its own configuration, told while the job ran"}
    ]
    takeovers: list[TakeoverRow]
    processes: Annotated[dict[str, ProcessRow], {"description": "<host>:<pid> -> a process of `rlprof wrap`"}]


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of run.json."""
    rows = (DriverRow, EndRow, TakeoverRow, ProcessRow)
    return {
        "$schema": DRAFT,
        "title": "rlprof-ops run",
        "description": "What a job was asked to do, where it runs or ran, and how it ended: run.json of a run"
        " folder. It is written anew at each turn of the job, and `end.cause` is `running` until its end.",
        **row_schema(RunRow),
        "$defs": {row.__name__: row_schema(row) for row in rows},
    }


def beginning(
    job: str, nodes: Sequence[str], head: str, command: str, request: ProfileRequest, notes: Sequence[str]
) -> RunRow:
    """The record of a job that begins; `notes` are of its request."""
    return {
        "schema": SCHEMA,
        "job": job,
        "job_name": os.environ.get("SLURM_JOB_NAME", ""),
        "user": _user(),
        "nodes": list(nodes),
        "head": head,
        "framework": None,
        "command": redact_text(command),
        "request": shown_request(request),
        "request_notes": list(notes),
        "world": {},
        "versions": _versions(),
        "submit_dir": os.environ.get("SLURM_SUBMIT_DIR", os.getcwd()),
        "started_ns": time.time_ns(),
        "driver": {"started_ns": None, "ended_ns": None, "exit_code": None, "signal": None},
        "end": {"cause": str(EndCause.RUNNING), "detail": "", "phases_s": {}},
    }


def shown_request(request: ProfileRequest) -> dict[str, Any]:
    """A request for files that others read, with *** for secrets in `env` and `options`. The job itself goes
    by its own request, which has them.
    """
    data = request.to_dict()
    for capture in data["captures"]:
        env, options = capture.get("env", {}), capture.get("options", {})
        options |= {name: redact_text(value) for name, value in options.items()}
        env |= {
            name: MASK if holds_secret(name, value) else redact_text(value) for name, value in env.items()
        }
    return data


def masked_names(request: ProfileRequest) -> list[str]:
    """The variables and options of a request from run.json whose values it does not have."""
    return [
        name
        for spec in request.captures
        for name, value in (*spec.env.items(), *spec.options.items())
        if MASK in value
    ]


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
