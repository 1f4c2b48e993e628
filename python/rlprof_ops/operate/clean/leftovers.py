"""What old jobs of mine left: run folders, caches of the analysis, folders on this node."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.backends import report_names
from rlprof_ops.collect.drain.node_record import is_only_copy
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import foreign, processes
from rlprof_ops.job import attempt, job_history
from rlprof_ops.job.folders import run_dir_of
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.run_folder import log_bases
from rlprof_ops.operate.clean.live_jobs import LiveJobs, runs_here

UNCOPIED = "not copied home"
_NOT_HOME = (
    "its reports were not copied home and are nowhere else. The job's output has the command that brings them"
    " to the run folder; --uncopied removes them"
)
_NAMES_ROOT = ("RLPROF_SITE_ENV", "RLPROF_TRAINER", "RLPROF_NODE_ROOT")
_UNITS_S = {"h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True)
class Old:
    """One thing to remove: `kind`: run folder, cache, node folder, or a node folder that was not copied home;
    `used_s` ago it was last written. `stays`: why it is left alone, "" for what can go.
    """

    path: Path
    kind: str
    size_bytes: int
    used_s: float
    stays: str = ""


def parse_age(text: str) -> float:
    """`30d` -> seconds; also `12h` and `4w`. Raises UsageError for anything else."""
    found = re.fullmatch(r"(\d{1,5})([hdw])", text.strip())
    if found is None:
        raise UsageError(f"--older-than is {text!r}: expected a number with h, d or w, e.g. 30d")
    return int(found[1]) * _UNITS_S[found[2]]


def find_old(
    older_than_s: float,
    folders: Iterable[Path],
    env: Mapping[str, str],
    caches_only: bool = False,
    uncopied: bool = False,
) -> list[Old]:
    """What is mine, belongs to no job that waits or runs, and was not written for so long; the oldest first.
    Of a job of which that is not known here it is told why it stays, and of a node folder that holds the only
    copy of reports, unless `uncopied`.

    `folders` are looked through beside the places where run folders are by the knobs, the site's file and
    what is remembered. Raises RlprofError when Slurm is here and does not answer: a job could still run.
    """
    live, now = LiveJobs.now(), time.time()
    bases = dict.fromkeys(base.resolve() for base in (*folders, *log_bases(env)))
    found = [old for base in bases for run in _runs(base) for old in _of_run(run, live, now, caches_only)]
    if not caches_only:
        found += _of_this_node(env, live, now, uncopied)
    return sorted((old for old in found if old.used_s >= older_than_s), key=lambda old: -old.used_s)


def remove(old: Iterable[Old]) -> Iterator[tuple[Old, str]]:
    """Remove each; gives it with why it could not be removed, "" when it is gone. Links are not followed."""
    gone = []
    for entry in old:
        try:
            if entry.kind == "cache":
                entry.path.unlink()
            else:
                shutil.rmtree(entry.path)
            gone.append(entry.path)
            yield entry, ""
        except OSError as error:
            yield entry, error.strerror or str(error)
    job_history.forget(gone)


def _runs(base: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(base), key=lambda entry: entry.name):
            path = Path(entry.path)
            if (
                attempt.of_folder(path)
                and entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid == os.getuid()
                and ((path / "run.json").is_file() or (path / ".secrets").is_dir())
            ):
                yield path


def _of_run(run: Path, live: LiveJobs, now: float, caches_only: bool) -> Iterator[Old]:
    """The run folder, or the caches in it; nothing of a job that waits or runs."""
    job = attempt.of_folder(run) or ""
    if live.has(job) or runs_here(foreign.read_object(run / "run.json")):
        return
    size_bytes, written = _measure(run)
    stays = live.run_in_doubt(job, run)
    if caches_only and not stays:
        for path, size in _caches(run):
            yield Old(path, "cache", size, now - written)
    else:
        yield Old(run, "run folder", size_bytes, now - written, stays)


def _caches(run: Path) -> Iterator[tuple[Path, int]]:
    for folder, _, files in os.walk(run):
        for name in files:
            if report_names.report_of_columns(name):
                path = Path(folder, name)
                with contextlib.suppress(OSError):
                    yield path, path.lstat().st_size


def _measure(folder: Path) -> tuple[int, float]:
    """Bytes in a folder, and when the newest file of it was written."""
    total, newest = 0, folder.lstat().st_mtime
    for inner, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(inner, name))
                total += found.st_size
                newest = max(newest, found.st_mtime)
    return total, newest


def _of_this_node(env: Mapping[str, str], live: LiveJobs, now: float, uncopied: bool) -> Iterator[Old]:
    """Folders of jobs that were killed here before they could clean up, or that the storage failed."""
    prefix = f"rlprof-{os.getuid()}-"
    root = _node_root(env)
    for path in sorted(root.glob(f"{prefix}*")) if root else ():
        with contextlib.suppress(OSError):
            about = path.lstat()
            job = path.name.removeprefix(prefix).partition("~")[0]
            mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
            if not mine or not attempt.NAME.fullmatch(job):
                continue
            if not live.has(job) and not processes.of_job(job, path):
                yield _of_node(path, live.node_in_doubt(job, run_dir_of(path)), now, uncopied)


def _of_node(path: Path, doubt: str, now: float, uncopied: bool) -> Old:
    size_bytes, written = _measure(path)
    if not is_only_copy(path):
        return Old(path, "node folder", size_bytes, now - written, doubt)
    return Old(path, UNCOPIED, size_bytes, now - written, doubt or ("" if uncopied else _NOT_HOME))


def _node_root(env: Mapping[str, str]) -> Path | None:
    chosen = {name: env[name] for name in _NAMES_ROOT if env.get(name)}
    with contextlib.suppress(RlprofError):
        return Path(Settings.load(chosen)["RLPROF_NODE_ROOT"])
    return None
