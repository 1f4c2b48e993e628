"""Readers: report files in, columns out."""

from __future__ import annotations

from pathlib import Path

from rlprof_ops import backends
from rlprof_ops.analyze.columns import Trace
from rlprof_ops.analyze.readers.read_error import UnreadableReport
from rlprof_ops.backends.contract import load
from rlprof_ops.host import foreign
from rlprof_ops.job import own_files

__all__ = ["UnreadableReport", "read_file", "read_report"]


SMALL_BYTES = 256 << 10  # a trace that is sooner read than pyarrow is imported: it is not cached


def read_report(path: Path, cache: bool = True) -> Trace:
    """Columns of one report, whichever profiler wrote it.

    Parameters
    ----------
    path: a torch-profiler trace (`.json`, `.json.gz`), a `.nsys-rep` or its SQLite export
    cache: use the Parquet beside the report, and write it in a run folder, unless it is small

    Raises `UnreadableReport`, which names the file, when nothing of it can be used.
    """
    try:
        if not path.exists():
            return _alone(path, cache)
        if path.stat().st_size == 0:
            raise UnreadableReport(path, "is empty: the profiler was killed before it wrote the report")
        if not cache or (path.stat().st_size < SMALL_BYTES and path.suffix != ".nsys-rep"):
            return read_file(path)
        from rlprof_ops.analyze.readers import cache as columns_cache

        source = columns_cache.digest(path)
        found = columns_cache.load(path, source)
        if found.trace is not None:
            return found.trace
        try:
            trace = read_file(path)
        except UnreadableReport as error:
            raise UnreadableReport(path, error.reason + _unused(path, found.why_not)) from error
        if own_files.run_of(path) is not None:
            columns_cache.store(trace, path, source)
        return trace
    except OSError as error:
        raise UnreadableReport(path, error.strerror or str(error)) from error


def _alone(path: Path, cache: bool) -> Trace:
    """What a node read out of a report that is not here."""
    from rlprof_ops.analyze.readers import cache as columns_cache

    if not cache:
        raise UnreadableReport(path, "is not here, and its columns are not to be used (--no-cache)")
    found = columns_cache.load(path, None)
    if found.trace is None:
        raise UnreadableReport(path, "is not here" + _unused(path, found.why_not))
    return found.trace


def _unused(path: Path, why: str) -> str:
    return f"; .{path.name}.columns.parquet beside it is not used: {why}" if why else ""


def read_file(path: Path, export_s: float | None = None) -> Trace:
    """Columns of one report, from itself; `export_s`: the most that a tool may take to export it.

    Raises `UnreadableReport`, OSError.
    """
    with foreign.open_plain(path) as file:
        magic = file.read(16)
    if magic == b"SQLite format 3\0":
        from rlprof_ops.analyze.readers.nsys_sqlite import read_nsys_sqlite

        return read_nsys_sqlite(path)
    backend = backends.of_report(path.name) or backends.get(backends.OF_TIMELINES)
    if not backend.reader:
        raise UnreadableReport(path, f"is a report of {backend.title}, which no reader knows")
    trace: Trace = load(backend.reader)(path, export_s)
    return trace
