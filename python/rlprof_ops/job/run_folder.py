"""From what a person types, a job id or a folder, to the job: its number, its run folder, what Slurm says."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host.foreign import reason_of
from rlprof_ops.job import attempt, job_history
from rlprof_ops.job.knobs import Settings, read_env_file
from rlprof_ops.job.own_files import recorded_job, run_of, run_of_record
from rlprof_ops.slurm import client
from rlprof_ops.slurm.client import SlurmJob


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
        return attempt.job_of(self.id)


def find(text: str, env: Mapping[str, str] | None = None) -> Job:
    """The job that `text` names: a job id, its run folder, or a file in it. What lies here under the name of
    a job id and is no run folder is not meant.

    Slurm is asked first, since a job records its run folder there; then BASE_LOG_DIR of the environment and
    of the site's file, this folder, the jobs that are remembered, and where Slurm says that the job wrote.
    The newest attempt of a requeued job wins.

    Raises:
        UsageError: there is neither a run folder nor a job that Slurm knows; the places that were tried.
        RlprofError: the run folder may not be read.
    """
    env = os.environ if env is None else env
    folder = None if _means_job(text) else _named_folder(text)
    if folder is not None:
        return _job_in(text, folder.resolve())
    if not attempt.NAME.fullmatch(text):
        raise UsageError(
            f"{text!r} is neither a folder nor a job id; give the run folder <job>-logs/ or a number like"
            " 4711"
        )
    known, why = client.look_up(attempt.job_of(text))
    names = dict.fromkeys(_names(text, known))
    tried: list[str] = []
    for base in _bases(text, known, env):
        place = str(base / attempt.folder_name(text))
        try:
            found = next(filter(None, (_in_base(base, name) for name in names)), None)
        except OSError as error:  # such a place hides no other one
            tried.append(f"{place} ({reason_of(error)})")
            continue
        if found is not None:
            readable(found)
            if known is not None:
                _keep(attempt.of_folder(found) or text, found, known, env)
            return Job(recorded_job(found) or attempt.of_folder(found) or text, found.resolve(), known)
        tried.append(place)
    if known is None:
        places = ", ".join(dict.fromkeys(tried))
        raise UsageError(
            f"no run folder for job {text}: {why}; tried {places}. Set BASE_LOG_DIR or give the folder itself"
        )
    if not (known.waiting or known.is_ours):
        raise UsageError(
            f"job {text} ({known.state}) is no job of rlprof's: its script is {known.command or 'unknown'},"
            " and it recorded no run folder"
        )
    return Job(known.id, None, known)


def run_folder(text: str, env: Mapping[str, str] | None = None) -> Path:
    """The run folder that `text` names. Raises as `find` does, RlprofError for a job that has none yet."""
    job = find(text, env)
    if job.run is None:
        raise RlprofError(f"job {job.id} has no run folder yet; rlprof status {job.id}")
    return job.run


def folder_of(text: str, env: Mapping[str, str] | None = None) -> Path:
    """What a command reads: a path that exists as it is, the run folder of a record or a log in it, else the
    run folder of that job id. A job id goes before a path of its name that is no run folder.
    """
    path = Path(text)
    if os.path.exists(text):
        if _means_job(text):
            with contextlib.suppress(UsageError):
                return run_folder(text, env)
        readable(path)
        return path if path.is_dir() else run_of_record(path) or path
    return run_folder(text, env)


def readable(path: Path) -> None:
    """Raise RlprofError, one line with the owner, when this user may not read a run folder or its records."""
    for entry in (path, *(path / name for name in ("run.json", "manifest.json", "nodes"))):
        need = os.R_OK | (os.X_OK if os.path.isdir(entry) else 0)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            owner = entry.stat().st_uid
            if not os.access(entry, need):
                raise RlprofError(denied(entry, owner))
        if not os.access(path, os.X_OK) and os.path.isdir(path):
            return


def denied(path: Path | str, owner: int | None = None) -> str:
    """What to say of a path that may not be read: whose it is, and what opens it."""
    if owner is None:
        with contextlib.suppress(OSError):
            owner = os.stat(path).st_uid
    whose = "" if owner is None or owner == os.getuid() else f" it belongs to {_user(owner)};"
    ask = "give yourself access" if not whose else "ask for access"
    return f"{path}: permission denied;{whose} {ask}, for instance by `chmod -R g+rX` on the run folder"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _means_job(text: str) -> bool:
    """Whether `text` is a job id, whatever lies here under that name: unless it is a run folder."""
    return attempt.NAME.fullmatch(text) is not None and job_of(Path(text).resolve()) is None


def _named_folder(text: str) -> Path | None:
    path = Path(text)
    try:
        if path.is_file():
            return run_of(path) or path.parent
        return path if path.is_dir() else None
    except PermissionError:
        raise RlprofError(denied(path)) from None


def _job_in(text: str, folder: Path) -> Job:
    readable(folder)
    job = job_of(folder)
    if job is None:
        raise UsageError(
            f"{text!r} is a folder, but not the run folder of a job (<job>-logs/ with a run.json)"
        )
    return Job(job, folder, client.show(attempt.job_of(job)))


def job_of(folder: Path) -> str | None:
    """The job of a run folder: what its run.json says, else its name."""
    return recorded_job(folder) or attempt.of_folder(folder)


def _names(text: str, known: SlurmJob | None) -> Iterator[str]:
    """`text`, and as the folder is called: an element of an array has two numbers, `99_3` and `102`."""
    yield text
    recorded = attempt.of_folder(Path(known.run_dir)) if known is not None else None
    if recorded is not None:
        yield attempt.name(attempt.job_of(recorded), attempt.number_of(text))


def _in_base(base: Path, text: str) -> Path | None:
    """The run folder of the attempt `text` in `base`; of the latest one when no attempt is named."""
    if ".r" not in text:
        return attempt.newest(base, text)
    folder = base / attempt.folder_name(text)
    return folder if folder.is_dir() else None


def _bases(text: str, known: SlurmJob | None, env: Mapping[str, str]) -> Iterator[Path]:
    if known is not None and known.run_dir:
        yield Path(known.run_dir).parent
    if env.get("BASE_LOG_DIR"):
        yield Path(env["BASE_LOG_DIR"]).expanduser()
    yield from _site_base(env)
    if known is not None and known.is_ours:
        yield from _base_of_checkout(Path(known.command).parent)
    yield Path.cwd()
    for folder in job_history.folders(attempt.job_of(text), env):
        yield folder.parent
    if known is not None:
        places = (known.output and os.path.dirname(known.output), known.work_dir)
        yield from (Path(place) for place in places if place.startswith("/"))


def log_bases(env: Mapping[str, str]) -> Iterator[Path]:
    """Every place where run folders of this user may be: by the knobs, here, and of remembered jobs."""
    if env.get("BASE_LOG_DIR"):
        yield Path(env["BASE_LOG_DIR"]).expanduser()
    yield from _site_base(env)
    yield Path.cwd()
    yield from dict.fromkeys(Path(known.run).parent for known in job_history.recall(env))


def _site_base(env: Mapping[str, str]) -> Iterator[Path]:
    """BASE_LOG_DIR as the site's file has it, so that a job id is found from any folder."""
    with contextlib.suppress(UsageError, OSError):
        chosen = {name: env[name] for name in ("RLPROF_SITE_ENV",) if env.get(name)}
        base = Settings.load(chosen).path("BASE_LOG_DIR")
        if base is not None:
            yield base


def _base_of_checkout(home: Path) -> Iterator[Path]:
    """BASE_LOG_DIR of the checkout that the job's ray.sub lies in, which need not be ours."""
    with contextlib.suppress(OSError):
        base = read_env_file(home / "env" / "site.env").get("BASE_LOG_DIR", "")
        if base.startswith("/"):
            yield Path(base)


def _keep(text: str, folder: Path, known: SlurmJob, env: Mapping[str, str]) -> None:
    """Remember what Slurm told of a job of mine: it forgets jobs after minutes."""
    job = attempt.job_of(text)
    mine = known.uid == os.getuid()
    if mine and not any(kept.parent == folder.parent for kept in job_history.folders(job, env)):
        with contextlib.suppress(OSError):
            submitted_ns = folder.stat().st_mtime_ns
            run = str(attempt.first(folder))
            job_history.remember(job_history.Remembered(job, run, known.name, submitted_ns), env)
