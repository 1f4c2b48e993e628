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
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.job import attempt, job_history
from rlprof_ops.job.run_folder import log_bases
from rlprof_ops.slurm import client

_UNITS_S = {"h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True)
class Old:
    """One thing to remove: `kind`: run folder, cache, or node folder; `used_s` ago it was last written."""

    path: Path
    kind: str
    size_bytes: int
    used_s: float


def parse_age(text: str) -> float:
    """`30d` -> seconds; also `12h` and `4w`. Raises UsageError for anything else."""
    found = re.fullmatch(r"(\d{1,5})([hdw])", text.strip())
    if found is None:
        raise UsageError(f"--older-than is {text!r}: expected a number with h, d or w, e.g. 30d")
    return int(found[1]) * _UNITS_S[found[2]]


def find_old(
    older_than_s: float, folders: Iterable[Path], env: Mapping[str, str], caches_only: bool = False
) -> list[Old]:
    """What is mine, belongs to no job that waits or runs, and was not written for so long; the oldest first.

    `folders` are looked through beside the places where run folders are by the knobs, the site's file and
    what is remembered. Raises RlprofError when Slurm is here and does not answer: a job could still run.
    """
    running = {attempt.job_of(job.id) for job in client.mine()} if client.available() else set()
    now = time.time()
    bases = dict.fromkeys(base.resolve() for base in (*folders, *log_bases(env)))
    found = []
    for base in bases:
        for run in _runs(base):
            if attempt.job_of(attempt.of_folder(run) or "") in running:
                continue
            size_bytes, written = _measure(run)
            if now - written < older_than_s:
                continue
            if caches_only:
                found += [Old(path, "cache", size, now - written) for path, size in _caches(run)]
            else:
                found.append(Old(run, "run folder", size_bytes, now - written))
    if not caches_only:
        found += [old for old in _of_this_node(running, now) if old.used_s >= older_than_s]
    return sorted(found, key=lambda old: -old.used_s)


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


def _of_this_node(running: set[str], now: float) -> Iterator[Old]:
    """Folders of jobs that were killed here before they could clean up."""
    from rlprof_ops.job.knobs import Settings

    try:
        root = Path(Settings.load({})["RLPROF_NODE_ROOT"])
    except RlprofError:
        return
    prefix = f"rlprof-{os.getuid()}-"
    for path in sorted(root.glob(f"{prefix}*")):
        with contextlib.suppress(OSError):
            about = path.lstat()
            named = re.match(r"\d+(_\d+)?", path.name.removeprefix(prefix))
            mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
            if mine and named and named[0] not in running:
                size_bytes, written = _measure(path)
                yield Old(path, "node folder", size_bytes, now - written)
