"""The same job again with only what is missing: its command, its flags and its knobs, from what its run
folder tells.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import foreign
from rlprof_ops.job import attempt, run_json
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.knobs import read_knobs
from rlprof_ops.redact import MASK, is_secret_name
from rlprof_ops.request import ProfileRequest, request_from_dict
from rlprof_ops.request.environ import REQUEST_VARIABLES
from rlprof_ops.submit.sbatch_line import SubmitRequest
from rlprof_ops.submit.send import read_record

_NOT_AGAIN = frozenset({*REQUEST_VARIABLES, env_names.HOME, env_names.JOB, "COMMAND"})


def request_of(folder: Path) -> ProfileRequest:
    """What the job was asked, from its run.json, where secrets in it are ***. Raises RlprofError without
    one.
    """
    return request_from_dict(_run_record(folder).get("request") or {}, origin=f"{folder}/run.json")


def with_secrets(request: ProfileRequest, env: Mapping[str, str]) -> ProfileRequest:
    """The same with variables of a shell for those that run.json masks in `env` of its captures. Raises
    UsageError naming what is masked and not set.
    """
    captures = []
    for spec in request.captures:
        given = {name: env.get(name, value) if MASK in value else value for name, value in spec.env.items()}
        captures.append(replace(spec, env=given))
    filled = replace(request, captures=tuple(captures))
    if masked := dict.fromkeys(run_json.masked_names(filled)):
        raise UsageError(
            f"run.json holds the request with {', '.join(masked)} masked; set the variables of its `env` here"
            " too, or submit what is missing with rlprof submit"
        )
    return filled


def asked_again(folder: Path, env: Mapping[str, str]) -> tuple[SubmitRequest, list[str]]:
    """How to submit the job of a run folder once more, and what had to be guessed about it.

    Raises RlprofError when the run folder does not tell its command, UsageError when it is somebody else's.
    """
    if not _is_ours(folder):
        raise UsageError(
            f"{folder} is another user's: its command would run as you; submit your own with rlprof submit"
        )
    for submitted in (folder, attempt.first(folder)):  # a requeue gives a job a new folder, and no submission
        if _is_ours(submitted) and (found := read_record(submitted, env)) is not None:
            return found, []
    record = _run_record(folder)
    command = str(record.get("command") or "")
    if MASK in command:
        raise RlprofError(
            f"{folder}/run.json holds the command with its secrets masked; give the command again after `--`"
        )
    nodes = record.get("nodes")
    words = (f"--nodes={len(nodes)}",) if isinstance(nodes, list) and nodes else ()
    note = (
        f"this job was not submitted by `rlprof submit`: it gets {' '.join(words) or 'no nodes'} and no other"
        " flag of sbatch; give those it needs"
    )
    return SubmitRequest(sbatch=words, command=command or None, knobs=_knobs_of(folder)), [note]


def _is_ours(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return folder.lstat().st_uid == os.getuid()
    return False


def _run_record(folder: Path) -> dict[str, Any]:
    if data := foreign.read_object(folder / "run.json"):
        return data
    raise RlprofError(f"{folder} has no readable run.json, so its command is not known")


def _knobs_of(folder: Path) -> dict[str, str]:
    """The knobs that the job ran with and that differ from the defaults, from the file that attaching
    uses.
    """
    knobs = read_knobs()
    found = {}
    with contextlib.suppress(OSError, ValueError):
        for word in shlex.split(foreign.read_bytes(RunFolder(folder).attach_env).decode()):
            name, _, value = word.partition("=")
            if (
                name in knobs
                and name not in _NOT_AGAIN
                and value != knobs[name].default
                and not is_secret_name(name)
            ):
                found[name] = value
    return found


def home_of(folder: Path) -> Path:
    """Where the first job was submitted, so that the second one's folder comes beside the first; else the
    folder's own parent.
    """
    with contextlib.suppress(RlprofError, OSError):
        named = str(_run_record(folder).get("submit_dir") or "")
        if named and os.path.isdir(named):
            return Path(named)
    return folder.parent
