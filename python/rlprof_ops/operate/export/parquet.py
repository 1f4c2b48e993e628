"""A run's steps, phases and requests as Parquet tables, for a notebook: those of every rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlprof_ops.analyze.whole_run.last_requests import ReplicaRequests
from rlprof_ops.errors import UsageError
from rlprof_ops.operate.export.engine_requests import requests_of
from rlprof_ops.operate.export.led_steps import RecordedStep, steps_of
from rlprof_ops.recorder.record_file import FOLDER, read_folder
from rlprof_ops.runtime.request_log import EngineRequest
from rlprof_ops.version import __version__

Row = tuple[Any, ...]
_OURS = b"rlprof_ops"  # in a file's metadata
_PROCESS = [("node", pa.string()), ("worker", pa.string()), ("rank", pa.int64()), ("pid", pa.int64())]
_STEP = [*_PROCESS, ("leads", pa.bool_()), ("step", pa.int64())]
_TIMES = [("begin_ns", pa.int64()), ("seconds", pa.float64())]
_REQUEST = [
    (name, pa.string() if name in ("id", "reason", "first") else pa.int64()) for name in EngineRequest._fields
]
SCHEMAS = {
    "steps": [*_STEP, *_TIMES],
    "phases": [*_STEP, ("phase", pa.string()), *_TIMES, ("own_s", pa.float64()), ("count", pa.int64())],
    "requests": [*_PROCESS, ("step", pa.int64()), *_REQUEST],
}


def write_tables(run: Path, folder: Path) -> dict[str, int]:
    """Write `<name>.parquet` of each schema; the number of rows of each. Raises UsageError where somebody
    else's file has that name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts = dict.fromkeys(SCHEMAS, 0)
    with contextlib.ExitStack() as files:
        writers = {name: files.enter_context(_file(folder, name)) for name in SCHEMAS}
        requests = {"requests": [_request(*each) for each in requests_of(run)]}
        for piece in chain(_recorded(run), [requests]):
            for name, rows in piece.items():
                schema = pa.schema(SCHEMAS[name])
                columns = list(zip(*rows, strict=True)) or [()] * len(schema)
                arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
                writers[name].write_table(pa.Table.from_arrays(arrays, schema=schema))
                counts[name] += len(rows)
    return counts


@contextlib.contextmanager
def _file(folder: Path, name: str) -> Iterator[Any]:
    """A writer whose file has its name once all of it is written."""
    path, unfinished = folder / f"{name}.parquet", folder / f".{name}.parquet.{os.getpid()}"
    if path.exists() and not _is_ours(path):
        raise UsageError(f"{path} was not written by rlprof and stays; name another folder")
    schema = pa.schema(SCHEMAS[name], {_OURS: __version__})
    try:
        with pq.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            yield writer
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    try:
        return _OURS in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False


def _recorded(run: Path) -> Iterator[dict[str, list[Row]]]:
    """Steps and phases of every process, as the recorder wrote them."""
    for folder in sorted(path for path in run.glob(f"nodes/*/{FOLDER}") if not path.is_symlink()):
        for block in read_folder(folder):
            told = [(_process(folder.parent.name, step), step) for step in steps_of(block, everyone=True)]
            yield {
                "steps": [(*who, step.begin_ns, step.seconds) for who, step in told],
                "phases": [
                    (*who, phase.name, phase.begin_ns, phase.seconds, phase.own_s, phase.count)
                    for who, step in told
                    for phase in step.phases
                ],
            }


def _process(node: str, step: RecordedStep) -> Row:
    return node, step.worker, step.rank, step.pid, step.leads, step.step


def _request(replica: ReplicaRequests, step: int | None, row: EngineRequest) -> Row:
    return replica.node, replica.worker, replica.rank, replica.pid, step, *row
