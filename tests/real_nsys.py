"""The real nsys in tests: programs run under it, and what it finds itself in their reports."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

_QUERY = (
    "SELECT coalesce(text, (SELECT value FROM StringIds WHERE id = textId)), (end - start) / 1e9"
    " FROM NVTX_EVENTS"
    " WHERE eventType IN (59, 60)"
)


def command(output: Path, *options: str, run: Sequence[str | Path] = ()) -> list[str]:
    """`nsys profile` of the NVTX ranges of `run`, which needs no rights and no GPU; `options` are nsys's."""
    plain = ["-t", "nvtx", "-s", "none", "--cpuctxsw=none"]
    return ["nsys", "profile", *plain, *options, "-o", str(output), *map(str, run)]


def profile(
    output: Path, run: str | Sequence[str | Path], *options: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """The report of a program that ends well. `run`: a command, or the code of a Python program."""
    words = [sys.executable, "-c", run] if isinstance(run, str) else run
    argv = command(output, "--force-overwrite=true", *options, run=words)
    return run_well(argv, {**os.environ, **env}, output.with_name(f"{output.stem}.nsys-rep"))


def run_well(
    argv: list[str], env: Mapping[str, str], makes: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to its good end, at most three times: nsys 2023.4 fails now and then on a busy machine, or ends
    with 0 and has not made the report.
    """
    for _ in range(3):
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=180)
        if not done.returncode and (makes is None or makes.is_file()):
            return done
        print(done.stdout[-2000:], done.stderr[-2000:])
    done.check_returncode()
    raise FileNotFoundError(f"{makes} is not there: {done.stdout[-2000:]}")


def export(report: Path, folder: Path) -> Path:
    """nsys's own SQLite export of a report, in a new folder below `folder`."""
    target = Path(tempfile.mkdtemp(prefix="export-", dir=folder)) / f"{report.name}.sqlite"
    run_well(["nsys", "export", "--type", "sqlite", "--output", str(target), str(report)], os.environ)
    return target


def nvtx_ranges(report: Path, folder: Path, *, ended: bool = False) -> list[str]:
    """The texts of all NVTX ranges of a report, sorted, as often as they occur; `ended`: only those that have
    an end. The export is kept below `folder`.
    """
    return sorted(text for text, seconds in nvtx_lengths(report, folder) if not ended or seconds is not None)


def nvtx_lengths(report: Path, folder: Path) -> list[tuple[str, float | None]]:
    """The text and the seconds of each NVTX range; of one whose end nsys has not, until the end of all. nsys
    exports no table that would be empty, as of a process that was killed before nsys had fetched a range.
    """
    with closing(sqlite3.connect(export(report, folder))) as database:
        has_any = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchone()
        return database.execute(_QUERY).fetchall() if has_any else []


_NVTX_SUM = """
import runpy, sqlite3, sys
class Unused:
    step = lambda self, value: None
    finalize = lambda self: 0
connect = sqlite3.connect
def with_statistics(*words, **more):
    database = connect(*words, **more)
    for name in ("median", "lower_quartile", "upper_quartile", "stdev"):
        database.create_aggregate(name, 1, Unused)
    return database
sqlite3.connect = with_statistics
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def nvtx_sum(report: Path, folder: Path) -> dict[str, int]:
    """Number of instances by range, of the report `nvtx_sum` of `nsys stats`; the export is kept in `folder`.

    Debian's nsys cannot run its own reports, so Python runs the script of NVIDIA's, without the
    statistics that nsys's own SQLite knows.
    """
    home = Path(str(shutil.which("nsys"))).resolve().parent
    made = export(report, folder)
    argv = [sys.executable, "-c", _NVTX_SUM, str(home / "reports" / "nvtx_sum.py"), str(made)]
    said = run_well(argv, {**os.environ, "PYTHONPATH": str(home / "python" / "lib")}).stdout
    rows = csv.DictReader(io.StringIO(said.strip()))
    return {row["Range"].removeprefix("rlprof:"): int(row["Instances"]) for row in rows}


def session_start_ns(report: Path, folder: Path) -> int:
    """When nsys began to collect a report, Unix ns, as the report itself says. The export is kept below
    `folder`.
    """
    with closing(sqlite3.connect(export(report, folder))) as tables:
        [(began_ns,)] = tables.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchall()
    return int(began_ns)
