"""What nsys itself finds in a report: its own export, read with sqlite."""

from __future__ import annotations

import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

_QUERY = (
    "SELECT coalesce(text, (SELECT value FROM StringIds WHERE id = textId)) FROM NVTX_EVENTS"
    " WHERE eventType IN (59, 60)"
)


def nvtx_ranges(report: Path, folder: Path, *, ended: bool = False) -> list[str]:
    """The texts of all NVTX ranges of a report, sorted, as often as they occur; `ended`: only those that have
    an end. The export is kept below `folder`.
    """
    target = Path(tempfile.mkdtemp(prefix="export-", dir=folder)) / f"{report.name}.sqlite"
    argv = ["nsys", "export", "--type", "sqlite", "--output", str(target), str(report)]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    with closing(sqlite3.connect(target)) as database:
        rows = database.execute(_QUERY + (" AND end IS NOT NULL" if ended else "")).fetchall()
    return sorted(text for (text,) in rows)
