"""Looks inside an nsys report through `nsys export`: which processes, which steps, how many events and
kernels.
"""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.backends.nsight import nsys_cli, nsys_process
from rlprof_ops.host import processes
from rlprof_ops.host.foreign import reason_of
from rlprof_ops.words import limit

_NO_PROGRESS_S = 5.0  # without processor time a tool hangs
_STEP = re.compile(r"step (\d{1,12})")
# Tables that hold something that happened; the rest describes the machine and the export itself.
_EVENT_TABLES = re.compile(
    r"(NVTX_EVENTS|CUPTI_ACTIVITY_KIND_\w+|OSRT_API|COMPOSITE_EVENTS|SCHED_EVENTS|GPU_METRICS|NET_NIC_METRIC|"
    r"CUDNN_EVENTS|CUBLAS_EVENTS|MPI_\w+_EVENTS|UCP_\w+EVENTS|PYTHON_\w+|CUDA_GPU_MEMORY_USAGE_EVENTS)"
)
# What is said where the scratch folder takes no more; nsys 2023.4 then ends with 0 and an empty export.
_NO_ROOM = re.compile(
    r"database or disk is full|No space left|Disk quota exceeded|disk I/O error|Read-only file system"
)
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
_NVTX_RANGES = (59, 60, 34)  # push/pop, start/end, mark


@dataclass(frozen=True)
class Contents:
    """What an export shows. `events` counts every recorded event, `kernels` CUDA kernels, `started_ns` is
    UTC.
    """

    pids: frozenset[int]
    steps: frozenset[int]
    events: int
    kernels: int
    gpus: int
    started_ns: int | None


class ExportFailed(Exception):
    """nsys could not read the report; the message is its own, shortened."""


class NotLookedInto(ExportFailed):
    """This machine had no time or no room for the export: of the report that says nothing."""


def look(report: Path, *, timeout_s: float = 120.0, scratch: Path | None = None) -> Contents:
    """Export `report` to SQLite in a scratch folder, read it, remove it.

    Raises:
        NotLookedInto: the report may be whole.
        ExportFailed: it is not.
    """
    nsys = nsys_cli.find()
    if nsys is None:
        raise NotLookedInto("nsys is not installed here")
    try:
        with tempfile.TemporaryDirectory(
            prefix="rlprof-export-", dir=scratch, ignore_cleanup_errors=True
        ) as folder:
            return _exported(nsys, report, Path(folder), timeout_s)
    except OSError as error:
        raise NotLookedInto(f"no export can be made here: {reason_of(error)}") from error
    except (ExportFailed, sqlite3.Error) as error:
        if no_room := _NO_ROOM.search(str(error)):
            raise NotLookedInto(f"no export can be written here: {no_room[0]}") from error
        if isinstance(error, ExportFailed):
            raise
        raise ExportFailed(f"the export cannot be read: {error}") from error


def _exported(nsys: str, report: Path, folder: Path, timeout_s: float) -> Contents:
    """Raises OSError, sqlite3.Error and `ExportFailed`."""
    database = folder / "export.sqlite"
    # Under a name of ours: a hostile one could be read as an option, and nsys writes beside what it reads.
    name = folder / "report.nsys-rep"
    name.symlink_to(report.resolve())
    argv = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", str(database), str(name)]
    output = run_bounded(argv, timeout_s, str(folder))
    if not database.exists() or _NO_ROOM.search(output):
        raise ExportFailed(f"nsys export wrote nothing: {output.strip()[-200:]}")
    return read(database)


def run_bounded(argv: list[str], timeout_s: float, tmpdir: str, most_s: float = 0.0) -> str:
    """Run a tool of nsys in a process group of its own, ended with its agents on timeout: after `timeout_s`,
    or after `most_s` while it uses processor time.

    Raises:
        NotLookedInto: that happened, or somebody else killed it.
        ExportFailed: it ended with another exit code than 0.
        OSError: it cannot be started.
    """
    began = time.monotonic()
    process = nsys_process.start(argv, tmpdir)
    wait_s, ticks = timeout_s, -1
    while True:
        try:
            output, _ = process.communicate(timeout=wait_s)
            break
        except subprocess.TimeoutExpired:
            before, ticks = ticks, processes.cpu_ticks(process.pid)
            left_s = most_s - (time.monotonic() - began)
            if left_s <= 0 or ticks == before:
                nsys_process.end_group(process)
                waited = limit(time.monotonic() - began)
                raise NotLookedInto(f"{Path(argv[0]).name} did not end within {waited}") from None
            wait_s = min(_NO_PROGRESS_S, left_s)
    if process.returncode != 0:
        lines = [
            line.strip()
            for line in output.replace("\r", "\n").splitlines()
            if line.strip() and "%" not in line
        ]
        failure = NotLookedInto if process.returncode in _KILLED else ExportFailed
        raise failure(
            f"{Path(argv[0]).name} ended with exit code {process.returncode}: {' '.join(lines)[-200:]}"
        )
    return output


def read(database: Path) -> Contents:
    """The same from an export that is there already. Raises sqlite3.Error."""
    with _open(database) as connection:
        tables = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        counts = {table: _count(connection, table) for table in tables if _EVENT_TABLES.fullmatch(table)}
        pids: set[int] = set()
        steps: set[int] = set()
        if "NVTX_EVENTS" in tables:
            marks = ",".join(map(str, _NVTX_RANGES))
            counts["NVTX_EVENTS"] = connection.execute(
                f"SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN ({marks})"
            ).fetchone()[0]
            for (thread,) in connection.execute(
                "SELECT DISTINCT globalTid FROM NVTX_EVENTS WHERE globalTid IS NOT NULL"
            ):
                pids.add(_pid(thread))
            texts = (
                "SELECT DISTINCT coalesce(e.text, s.value) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id"
                f" = e.textId WHERE e.eventType IN ({marks})"
            )
            for (text,) in connection.execute(texts):
                match = _STEP.fullmatch(text or "")
                if match:
                    steps.add(int(match[1]))
        kernels = 0
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            kernels = counts["CUPTI_ACTIVITY_KIND_KERNEL"]
            for (process,) in connection.execute(
                "SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid IS NOT NULL"
            ):
                pids.add(_pid(process))
        gpus = _count(connection, "TARGET_INFO_GPU") if "TARGET_INFO_GPU" in tables else 0
        started = None
        if "TARGET_INFO_SESSION_START_TIME" in tables:
            row = connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
            started = row[0] if row else None
        return Contents(frozenset(pids), frozenset(steps), sum(counts.values()), kernels, gpus, started)


class _open:
    """A read-only connection that is closed at the end (sqlite3's own context manager only commits)."""

    def __init__(self, database: Path) -> None:
        self._connection = sqlite3.connect(f"file:{_quoted(database)}?mode=ro", uri=True)

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *exc: object) -> None:
        self._connection.close()


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path))


def _count(connection: sqlite3.Connection, table: str) -> int:
    count: int = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
    return count


def _pid(global_id: int) -> int:
    """nsys packs hardware, VM, process and thread into one int64; the process is in bits 24 to 47."""
    return (global_id >> 24) & 0xFFFFFF
