"""Keeps the columns of a report as Parquet beside it, so that a second look costs a fraction of the first.

One file, row groups of at most `_GROUP_ROWS` rows of one table; the rest of the trace and the digest of its
source are in the schema's metadata.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import stat
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import TypeVar

import numpy as np

from rlprof_ops.analyze.columns import (
    DTYPES,
    Collective,
    GpuSpans,
    Launches,
    MemorySamples,
    Origin,
    Spans,
    Trace,
)
from rlprof_ops.analyze.readers.spill import Parts, release

VERSION = 4  # of the columns and of what the readers put in them; a cache of another version is not read
_GROUP_ROWS = 1 << 18
Table = TypeVar("Table", Spans, Launches, GpuSpans, MemorySamples)
_KEY = b"rlprof_ops.columns"
_TABLES: dict[str, type[Spans | MemorySamples]] = {
    "ranges": Spans, "ops": Spans, "launches": Launches, "gpu": GpuSpans, "memory": MemorySamples,
}  # fmt: skip
_COLUMNS = tuple(dict.fromkeys(f.name for table in _TABLES.values() for f in fields(table)))


def cache_path(report: Path) -> Path:
    return report.with_name(f".{report.name}.columns.parquet")


def digest(report: Path) -> str:
    """SHA-256 of the report, read in pieces."""
    summed = hashlib.sha256()
    with open(report, "rb") as file:
        while piece := file.read(1 << 20):
            summed.update(piece)
    return summed.hexdigest()


def store(trace: Trace, report: Path, source_digest: str) -> bool:
    """Writes the cache of `report`; False when the folder cannot be written to, which is no error."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rest = {
        "version": VERSION, "digest": source_digest, "origin": asdict(trace.origin), "names": trace.names,
        "tracks": trace.tracks, "collectives": [asdict(c) for c in trace.collectives], "events": trace.events,
        "damaged": trace.damaged, "truncated": trace.truncated,
        "rows": {name: len(getattr(trace, name)) for name in _TABLES},
    }  # fmt: skip
    schema = pa.schema(
        [(c, pa.from_numpy_dtype(DTYPES[c])) for c in _COLUMNS], {_KEY: json.dumps(rest).encode()}
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
                    has = {f.name for f in fields(table)}
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


def load(report: Path, source_digest: str) -> Trace | None:
    """The trace of `report` from its cache; None when there is none that fits it."""
    path = cache_path(report)
    if not path.is_file():
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        rest = json.loads(file.schema_arrow.metadata[_KEY])
        if rest["version"] != VERSION or rest["digest"] != source_digest:
            return None
        groups = itertools.count()

        def table(name: str, kind: type[Table]) -> Table:
            """The next table of the file; they stand in it in the order of `_TABLES`."""
            wanted, rows = [f.name for f in fields(kind)], int(rest["rows"][name])
            if rows == 0:
                return kind(**{c: np.empty(0, DTYPES[c]) for c in wanted})
            parts = Parts()
            for _ in range(0, rows, _GROUP_ROWS):
                read = file.read_row_group(next(groups), columns=wanted)
                parts.append({c: read.column(c).to_numpy() for c in wanted})
            found = parts.table(kind)
            if len(found) != rows:
                raise ValueError(f"{name} has {len(found)} rows of {rows}")
            return found

        gpus = tuple((pid, device, uuid) for pid, device, uuid in rest["origin"]["gpus"])
        origin = Origin(**(rest["origin"] | {"devices": tuple(rest["origin"]["devices"]), "gpus": gpus}))
        return Trace(
            origin=origin, names=tuple(rest["names"]), tracks=tuple((p, t) for p, t in rest["tracks"]),
            collectives=tuple(Collective(**c) for c in rest["collectives"]), events=rest["events"],
            damaged=rest["damaged"], truncated=rest["truncated"],
            ranges=table("ranges", Spans), ops=table("ops", Spans), launches=table("launches", Launches),
            gpu=table("gpu", GpuSpans), memory=table("memory", MemorySamples),
        )  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException):
        return None  # a damaged cache is as good as none
