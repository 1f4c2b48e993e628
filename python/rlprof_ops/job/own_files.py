"""Which folders and files are rlprof's own: nothing is written into others' folders, or over their files."""

from __future__ import annotations

import gzip
import re
import stat
import zipfile
import zlib
from pathlib import Path

from rlprof_ops.errors import UsageError
from rlprof_ops.host import atomic, foreign
from rlprof_ops.job import attempt

RECORDS = ("manifest.json", "run.json", "state.json", "harvest_job.json", "report.json", "report.html")
_RECORD_FOLDERS = ("logs", "nodes", "ray", "recorder", "control", "events", ".secrets")
_HEAD_BYTES = 4096
# What stands at the start of each file that is written beside a report's reader's input.
_MARK = re.compile(
    rb'<meta name="generator" content="rlprof-ops|"made_by"\s*:\s*"rlprof-ops|rlprof: ranks of|# TYPE rlprof_'
)


def recorded_job(folder: Path) -> str | None:
    """The job that the run.json of a folder tells; None where there is none of ours."""
    job = foreign.read_object(folder / "run.json").get("job")
    return job if isinstance(job, str) and attempt.NAME.fullmatch(job) else None


def run_of(path: Path) -> Path | None:
    """The run folder in which a file lies."""
    return next((folder for folder in path.absolute().parents if recorded_job(folder) is not None), None)


def run_of_record(path: Path) -> Path | None:
    """The run folder that a file is a record or a log of; None for everything else, reports among it."""
    run = run_of(path)
    if run is None:
        return None
    first, *more = path.absolute().relative_to(run).parts
    is_record = first in _RECORD_FOLDERS if more else first in RECORDS or first.startswith("timeline.")
    return run if is_record else None


def output_folder(root: Path, named: Path | None) -> Path:
    """Where the answer about `root` goes: the folder that was named, else the run folder that it is or a
    folder that was named before; the current folder for what is somebody else's.

    Raises UsageError where that would replace the report of another run.
    """
    if named is not None:
        return named
    if recorded_job(root) is not None or _is_marked(root / "report.json"):
        return root
    here = Path()
    job = recorded_job(here)
    if job is not None and root.resolve() != here.resolve():
        raise UsageError(
            f"{root} is no run folder, and the current folder is the one of job {job}, whose report this"
            " would replace; name another with --output"
        )
    return here


def check_ours(path: Path) -> None:
    """Raise UsageError where `path` is there and rlprof did not write it: a file of somebody else, a link, a
    device. An empty file has nothing to lose.
    """
    try:
        there = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(there.st_mode):
        kind = "a link" if stat.S_ISLNK(there.st_mode) else "no plain file"
        raise UsageError(
            f"{path} is {kind}, and nothing is written over it; move it away, or name another place"
        )
    if there.st_size and not _is_marked(path):
        raise UsageError(f"{path} was not written by rlprof and stays; move it away, or name another place")


def write(path: Path, text: str) -> None:
    """Write a text file that carries our mark: whole or not at all. Raises OSError; UsageError as
    `check_ours` does.
    """
    check_ours(path)
    atomic.write(path, text, mode=0o644)


def _is_marked(path: Path) -> bool:
    try:
        with foreign.open_plain(path) as file:
            if path.suffix == ".zip":
                with zipfile.ZipFile(file) as archive, archive.open("perfetto_manifest.json") as said:
                    return b'"rlprof.run"' in said.read(foreign.MOST_BYTES)
            if path.suffix == ".gz":
                return _MARK.search(gzip.GzipFile(fileobj=file).read(_HEAD_BYTES)) is not None
            return _MARK.search(file.read(_HEAD_BYTES)) is not None
    except (OSError, EOFError, KeyError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile):
        return False
