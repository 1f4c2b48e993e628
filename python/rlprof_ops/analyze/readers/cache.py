"""Keeps the columns of a report as Parquet beside it, so that a second look costs a fraction of the first.

One file, row groups of at most `_GROUP_ROWS` rows of one table; the rest of the trace and the digest of its
source are in the schema's metadata. A node writes the same file beside the training (`analyze/distil`), so
that nobody has to read the report itself again; what comes from there is checked like any foreign file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from rlprof_ops.analyze.columns import (
    DTYPES,
    MEMSET,
    Collective,
    GpuSpans,
    Launches,
    MemorySamples,
    MetricSamples,
    Origin,
    Shape,
    Shaped,
    Spans,
    Trace,
    Track,
)
from rlprof_ops.analyze.readers.nsys_metrics import KEPT
from rlprof_ops.analyze.readers.spill import Parts, release
from rlprof_ops.backends import report_names

VERSION = 9  # of the columns and of what the readers put in them; a cache of another version is not read
_GROUP_ROWS = 1 << 18
Table = TypeVar("Table", Spans, Shaped, Launches, GpuSpans, MemorySamples, MetricSamples)
_KEY = b"rlprof_ops.columns"
_TABLES: dict[str, type[Spans | MemorySamples | MetricSamples]] = {
    "ranges": Spans, "ops": Spans, "launches": Launches, "gpu": GpuSpans, "memory": MemorySamples,
    "metrics": MetricSamples, "shaped": Shaped,
}  # fmt: skip
_COLUMNS = tuple(dict.fromkeys(c for table in _TABLES.values() for c in table.__struct_fields__))
_LATEST = 1 << 62  # ns; a later time is none


class _Rest(msgspec.Struct, forbid_unknown_fields=True):
    """What is no column. `alone`: made where the report was, so that it stands for a report which has not
    arrived.
    """

    version: int
    digest: str
    alone: bool
    origin: Origin
    names: tuple[str, ...]
    tracks: tuple[Track, ...]
    collectives: tuple[Collective, ...]
    shapes: tuple[Shape, ...]
    events: int
    damaged: int
    truncated: str
    rows: dict[str, int]


class _Version(msgspec.Struct):
    version: int


@dataclass(frozen=True)
class Found:
    """What the file beside a report gives: its trace, or why that file is not used ("": there is none)."""

    trace: Trace | None
    why_not: str = ""


def cache_path(report: Path) -> Path:
    return report.with_name(report_names.columns_of(report.name))


def digest(report: Path) -> str:
    """SHA-256 of the report, read in pieces."""
    summed = hashlib.sha256()
    with open(report, "rb") as file:
        while piece := file.read(1 << 20):
            summed.update(piece)
    return summed.hexdigest()


def store(trace: Trace, report: Path, source_digest: str, *, alone: bool = False) -> bool:
    """Writes the columns of `report` beside it; False when the folder cannot be written to, which is no
    error. `alone`: they may be used where the report is not.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rest = _Rest(
        version=VERSION, digest=source_digest, alone=alone, origin=trace.origin, names=trace.names,
        tracks=trace.tracks, collectives=trace.collectives, shapes=trace.shapes, events=trace.events,
        damaged=trace.damaged, truncated=trace.truncated,
        rows={name: len(getattr(trace, name)) for name in _TABLES},
    )  # fmt: skip
    schema = pa.schema(
        [(c, pa.from_numpy_dtype(DTYPES[c])) for c in _COLUMNS],
        {_KEY: json.dumps(msgspec.to_builtins(rest)).encode()},
    )
    try:
        descriptor, temporary = tempfile.mkstemp(dir=report.parent, prefix=".rlprof-", suffix=".tmp")
    except OSError:
        return False
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            pq.ParquetWriter(
                file, schema, compression="zstd", use_dictionary=False, write_statistics=False
            ) as writer,
        ):
            for name in _TABLES:
                table = getattr(trace, name)
                if not len(table):
                    continue
                for first in range(0, len(table), _GROUP_ROWS):
                    rows = slice(first, first + _GROUP_ROWS)
                    absent = np.zeros(min(_GROUP_ROWS, len(table) - first), np.int64)
                    has = table.__struct_fields__
                    columns = [
                        pa.array(getattr(table, c)[rows] if c in has else absent.astype(DTYPES[c]))
                        for c in _COLUMNS
                    ]
                    writer.write_table(
                        pa.Table.from_arrays(columns, schema=schema), row_group_size=_GROUP_ROWS
                    )
                    release(table)
        os.chmod(temporary, stat.S_IMODE(report.stat().st_mode) & 0o666)  # it holds what the report holds
        os.replace(temporary, cache_path(report))
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        return False
    return True


def load(report: Path, source_digest: str | None) -> Found:
    """The trace of `report` from the file beside it, if that is of this version and of the report with this
    digest; None: the report is not here, and only a file that was made to stand alone will do.
    """
    path = cache_path(report)
    if path.is_symlink() or not path.is_file():
        return Found(None)
    import pyarrow as pa

    try:
        return _load(path, source_digest)
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        MemoryError,
        RecursionError,
        pa.ArrowException,
    ) as error:
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        return Found(None, f"it is damaged ({said[:200]})")


def stands_alone(columns: Path) -> bool:
    """Whether a file of columns whose report is not here counts: made for that, or a wreck to be told of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        told = json.loads((pq.read_schema(columns).metadata or {})[_KEY])
        return bool(told.get("alone"))
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError, pa.ArrowException):
        return True


def _load(path: Path, source_digest: str | None) -> Found:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    told = json.loads((file.schema_arrow.metadata or {})[_KEY])
    version = msgspec.convert(told, _Version).version
    if version != VERSION:
        return Found(None, f"it is of version {version}, this reads version {VERSION}")
    rest = msgspec.convert(told, _Rest)
    if source_digest is None and not rest.alone:
        return Found(None, "it was made to speed up reading a report that is not here")
    if source_digest is not None and rest.digest != source_digest:
        return Found(None, "it is of another report: the SHA-256 differs")
    groups = itertools.count()

    def table(name: str, kind: type[Table]) -> Table:
        """The next table of the file; they stand in it in the order of `_TABLES`."""
        wanted, rows = kind.__struct_fields__, rest.rows[name]
        if rows == 0:
            return kind(**{c: np.empty(0, DTYPES[c]) for c in wanted})
        parts = Parts()
        for _ in range(0, rows, _GROUP_ROWS):
            number = next(groups)
            if number >= file.num_row_groups or file.metadata.row_group(number).num_rows > _GROUP_ROWS:
                raise ValueError(f"{name} has not the rows that it tells")
            read = file.read_row_group(number, columns=wanted)
            parts.append({c: read.column(c).to_numpy() for c in wanted})
        found = parts.table(kind)
        if len(found) != rows:
            raise ValueError(f"{name} has {len(found)} rows of {rows}")
        return found

    trace = Trace(
        origin=rest.origin, names=rest.names, tracks=rest.tracks, collectives=rest.collectives,
        shapes=rest.shapes, events=rest.events, damaged=rest.damaged, truncated=rest.truncated,
        ranges=table("ranges", Spans), ops=table("ops", Spans), launches=table("launches", Launches),
        gpu=table("gpu", GpuSpans), memory=table("memory", MemorySamples),
        metrics=table("metrics", MetricSamples), shaped=table("shaped", Shaped),
    )  # fmt: skip
    _check(trace)
    return Found(trace)


def _check(trace: Trace) -> None:
    """Raises ValueError where a column points to what is not there, as no reader leaves it."""
    codes = {"name": len(trace.names), "track": len(trace.tracks), "collective": len(trace.collectives)}
    codes["shape"] = len(trace.shapes)
    share = trace.metrics.share
    if not bool(((share >= 0) & (share <= 1)).all()):
        raise ValueError("metrics has a share that is none")
    for table in _TABLES:
        if table == "metrics":
            codes |= {"gpu": len(trace.origin.metered), "metric": len(KEPT)}
        part = getattr(trace, table)
        for column in part.__struct_fields__:
            values = getattr(part, column)
            if not len(values):
                continue
            least, most = int(values.min()), int(values.max())
            if column in codes:
                fits = least >= -1 and most < codes[column]
            elif column in ("start", "time", "duration"):
                fits = least >= (0 if column == "duration" else -_LATEST) and most <= _LATEST
            else:
                fits = column != "kind" or most <= MEMSET
            if not fits:
                raise ValueError(f"{table} has a {column} from {least} to {most}")
        release(part)
