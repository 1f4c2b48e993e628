"""Gives a submission to sbatch, and keeps what `rlprof retry` and the other commands need to know of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import atomic, foreign
from rlprof_ops.job.job_history import Remembered, remember
from rlprof_ops.job.knobs import home
from rlprof_ops.redact import is_secret_name
from rlprof_ops.slurm import client, sbatch_options
from rlprof_ops.submit.sbatch_line import Submission, SubmitRequest

RECORD = "submit.json"  # in .secrets of the run folder


def send(submission: Submission, cwd: Path, env: Mapping[str, str]) -> str:
    """Run sbatch in `cwd`, which becomes the job's own folder; the job's id. Raises RlprofError with
    sbatch's own words, and the option it may have meant.
    """
    if not (home() / "ray.sub").is_file():
        raise RlprofError(f"{home()}/ray.sub does not exist; set RLPROF_HOME to the folder that holds it")
    done = client.run(submission.argv, env=submission.env, cwd=cwd, timeout_s=120)
    if done.returncode:
        raise _refused(done.stderr.strip())
    lines = [line for line in done.stdout.splitlines() if re.match(r"\d+(;|$)", line.strip())]
    if not lines:
        raise RlprofError(f"sbatch said no job id: {(done.stdout + done.stderr).strip()}")
    job = lines[-1].strip().partition(";")[0]
    write_record(submission, job, cwd)
    named = sbatch_options.value_of(submission.argv, "--job-name", "-J")
    name = named or submission.env.get("SBATCH_JOB_NAME", "rlprof")
    remember(Remembered(job, str(submission.run_folder(job)), name, time.time_ns()), env)
    return job


def _refused(said: str) -> RlprofError:
    unknown = re.search(r"unrecognized option '?(--[\w-]+)", said)
    if unknown is None:
        return RlprofError(f"sbatch refused the job: {said}")
    near = sbatch_options.nearest(unknown[1], ())
    return UsageError(f"sbatch refused the job: {said}" + (f"\nDid you mean {near}?" if near else ""))


def write_record(submission: Submission, job: str, cwd: Path) -> None:
    """What `rlprof retry` needs, beside the job's token, readable by the user alone. No secret that has a
    name is in it.
    """
    asked = submission.asked
    kept = {
        name: value
        for name, value in submission.explicit.items()
        if not is_secret_name(name) and name not in asked.from_shell
    }
    record: dict[str, Any] = {
        "schema": 1,
        "job": job,
        "sbatch": list(asked.sbatch),
        "command": asked.command,
        "knobs": kept,
        "from_shell": sorted(
            asked.from_shell | {name for name in submission.explicit if is_secret_name(name)}
        ),
        "framework": asked.framework,
        "cwd": str(cwd),
        "retry_of": asked.retry_of,
    }
    folder = submission.run_folder(job)
    with contextlib.suppress(OSError):  # a folder that only compute nodes can write; the job makes it too
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        secrets = folder / ".secrets"
        secrets.mkdir(mode=0o700, exist_ok=True)
        owner = secrets.lstat()
        if owner.st_uid != os.getuid() or not stat.S_ISDIR(owner.st_mode):
            return  # job numbers can be guessed, and somebody who may write in the base has been here before
        atomic.write(secrets / RECORD, json.dumps(record, indent=1) + "\n", mode=0o600)


def read_record(folder: Path, env: Mapping[str, str]) -> SubmitRequest | None:
    """How the job of a run folder was submitted; None when not by `rlprof submit`, or by somebody else.

    Variables that came from a shell are taken from `env` now. Raises UsageError naming those that are not
    set.
    """
    try:
        data = foreign.read(folder / ".secrets" / RECORD)
        knobs, names = dict(data["knobs"]), list(data["from_shell"])
        asked = SubmitRequest(
            tuple(data["sbatch"]), data["command"], knobs, frozenset(names), framework=data["framework"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    missing = [name for name in names if name not in env]
    if missing:
        raise UsageError(
            f"the job was given {', '.join(missing)} from the shell; set"
            f" {'it' if len(missing) == 1 else 'them'} here too"
        )
    return replace(asked, knobs={**knobs, **{name: env[name] for name in names}})
