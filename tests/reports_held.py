"""From when to when a report of each backend holds something, and what, as the report itself says."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import real_nsys

_RANGES = (
    "SELECT start, coalesce(end, start), coalesce(text, (SELECT value FROM StringIds WHERE id = textId))"
    " FROM NVTX_EVENTS WHERE eventType IN (59, 60)"
)


@dataclass(frozen=True)
class Held:
    """Begin of the first and end of the last event, Unix seconds, and the names that there are."""

    first_s: float
    last_s: float
    names: frozenset[str]


def held_by(backend: str, report: Path, folder: Path) -> Held:
    """What a report of nsight (its NVTX ranges), torch or memory (the host's) holds. nsys exports it below
    `folder`. Raises ValueError of a report that holds nothing.
    """
    if backend == "nsight":
        return _of_nsight(report, folder)
    with gzip.open(report, "rt") as packed:
        found = json.load(packed)
    return _of_torch(found) if backend == "torch" else _of_memory(found)


def _of_nsight(report: Path, folder: Path) -> Held:
    with closing(sqlite3.connect(real_nsys.export(report, folder))) as tables:
        [(zero,)] = tables.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
        rows = tables.execute(_RANGES).fetchall()
    return _held([((zero + begin) / 1e9, (zero + end) / 1e9, name) for begin, end, name in rows])


def _of_torch(trace: dict[str, Any]) -> Held:
    """Kineto's own rows about the trace reach beyond what it recorded."""
    zero = trace["baseTimeNanoseconds"]
    rows = [row for row in trace["traceEvents"] if row.get("cat") in ("cpu_op", "user_annotation")]
    begun = [(zero + 1e3 * row["ts"], 1e3 * row.get("dur", 0), row["name"]) for row in rows]
    return _held([(begin / 1e9, (begin + length) / 1e9, name) for begin, length, name in begun])


def _of_memory(found: dict[str, Any]) -> Held:
    samples = found["samples"]
    return Held(samples[0][0] / 1e9, samples[-1][0] / 1e9, frozenset())


def _held(rows: list[tuple[float, float, str]]) -> Held:
    if not rows:
        raise ValueError("nothing is in it")
    first_s, last_s = min(first for first, _, _ in rows), max(last for _, last, _ in rows)
    return Held(first_s, last_s, frozenset(name for *_, name in rows))
