"""Turns a `.nsys-rep` into a SQLite export, bounded in time, in a private folder that goes away
afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from rlprof_ops.analyze.columns import Trace
from rlprof_ops.analyze.readers.nsys_sqlite import read_nsys_sqlite
from rlprof_ops.analyze.readers.read_error import UnreadableReport
from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.words import limit

BASE_TIMEOUT_S = 120.0
TIMEOUT_S_PER_MIB = 2.0
HELP_TIMEOUT_S = 20.0


def read_nsys(report: Path, export_s: float | None = None) -> Trace:
    """Columns of one `.nsys-rep`; `export_s`: the most that nsys may take. Raises `UnreadableReport`."""
    with exported(report, export_s) as export:
        return read_nsys_sqlite(export, report)


@contextlib.contextmanager
def exported(report: Path, timeout_s: float | None = None) -> Iterator[Path]:
    """The path of a SQLite export of `report`, valid inside the `with`.

    An export that already lies beside the report and is not older is used as it is.

    Raises `UnreadableReport` when there is no nsys, when it fails, or when it takes longer than `timeout_s`
    (default: 120 s and 2 s a MiB).
    """
    beside = report.with_suffix(".sqlite")
    if beside.is_file() and beside.stat().st_mtime_ns >= report.stat().st_mtime_ns:
        yield beside
        return
    size_mib = report.stat().st_size / (1 << 20)
    if size_mib == 0:
        raise UnreadableReport(report, "is empty: the profiler was killed before it wrote the report")
    nsys = nsys_cli.find()
    if nsys is None:
        raise UnreadableReport(
            report,
            f"no nsys to export it with ({nsys_cli.why_missing(os.environ)}); set RLPROF_NSYS, or put `nsys"
            " export --type sqlite` beside it",
        )
    timeout = BASE_TIMEOUT_S + TIMEOUT_S_PER_MIB * size_mib if timeout_s is None else timeout_s
    folder = Path(tempfile.mkdtemp(prefix="rlprof-export-"))
    try:
        target = folder / "export.sqlite"
        argv = [
            nsys,
            "export",
            "--type",
            "sqlite",
            "--force-overwrite",
            "true",
            *_payloads_too(nsys, min(timeout, HELP_TIMEOUT_S)),
            "--output",
            str(target),
            str(report.absolute()),
        ]
        code, output = _run(argv, folder, timeout)
        if code:  # nsys 2023.4 fails now and then on a busy machine, of a report that is sound
            code, output = _run(argv, folder, timeout)
        if code is None:
            raise UnreadableReport(report, f"`nsys export` took longer than {limit(timeout)} and was ended")
        if code != 0 or not target.is_file():
            said = next(
                (line.strip() for line in reversed(output.splitlines()) if line.strip()), "it said nothing"
            )
            raise UnreadableReport(report, f"`nsys export` failed with exit code {code}: {said[-300:]}")
        yield target
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@lru_cache
def _payloads_too(nsys: str, timeout_s: float) -> tuple[str, ...]:
    """The option that exports NVTX payloads, where this nsys has it (2023.4 has not)."""
    with tempfile.TemporaryDirectory(prefix="rlprof-export-") as folder:
        _, said = _run([nsys, "export", "--help"], Path(folder), timeout_s)
    return ("--include-blobs=true",) if "--include-blobs" in said else ()


def _run(argv: list[str], folder: Path, limit_s: float) -> tuple[int | None, str]:
    """Exit code (None: out of time) and output. The whole process group ends with it: nsys leaves
    importers behind.
    """
    environment = os.environ | {"TMPDIR": str(folder)}
    with open(folder / "output", "w+b") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        return code, log.read(1 << 16).decode("utf-8", "replace")
