"""From what a person types, a folder or a job id, to the run folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlprof_ops.errors import UsageError
from rlprof_ops.job import job_history

_JOB = re.compile(r"(\d+(?:_\d+)?|local-\d+)(\.r\d+)?")
_SCONTROL_TIMEOUT_S = 10.0


def run_folder(text: str, env: Mapping[str, str] | None = None) -> Path:
    """The run folder that `text` names: a folder, its manifest.json or run.json, or a job id.

    A job id is looked for in BASE_LOG_DIR, then here, then where `rlprof submit` remembers it, then where
    Slurm says that the job's output is; the newest attempt of a requeued job wins. Raises `UsageError` with
    the places that were tried.
    """
    env = os.environ if env is None else env
    path = Path(text)
    if path.name in ("manifest.json", "run.json") and path.is_file():
        return path.parent
    if path.is_dir():
        return path
    if not _JOB.fullmatch(text):
        raise UsageError(
            f"{text!r} is neither a folder nor a job id; give the run folder <job>-logs/ or a number like"
            " 4711"
        )
    tried: list[Path] = []
    for base in _bases(text, env):
        tried.append(base / f"{text}-logs")
        attempts = (
            [entry for entry in base.glob(f"{text}.r*-logs") if entry.is_dir()] if "." not in text else []
        )
        if attempts:
            return max(attempts, key=_attempt)
        if tried[-1].is_dir():
            return tried[-1]
    places = ", ".join(str(place) for place in dict.fromkeys(tried))
    raise UsageError(
        f"no run folder for job {text}: tried {places}; set BASE_LOG_DIR or give the folder itself"
    )


def _attempt(folder: Path) -> int:
    found = re.search(r"\.r(\d+)-logs$", folder.name)
    return int(found[1]) if found else 0


def _bases(job: str, env: Mapping[str, str]) -> Iterator[Path]:
    if env.get("BASE_LOG_DIR"):
        yield Path(env["BASE_LOG_DIR"])
    yield Path.cwd()
    for known in job_history.folders(job.partition(".")[0], env):
        yield known.parent
    for folder in _slurm_folders(job.partition(".")[0]):
        yield from (folder, folder.parent)


def _slurm_folders(job: str) -> list[Path]:
    """Where Slurm says that the job wrote or ran; empty without Slurm or when it has forgotten the job."""
    if shutil.which("scontrol") is None or not job.replace("_", "").isdigit():
        return []
    try:
        shown = subprocess.run(
            ["scontrol", "show", "job", job],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SCONTROL_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    values = dict(line.strip().partition("=")[::2] for line in shown.splitlines())
    paths = [values[key] for key in ("StdOut", "WorkDir", "Comment") if values.get(key, "").startswith("/")]
    return [Path(path).parent if key == 0 else Path(path) for key, path in enumerate(paths)]
