"""Reads the SQLite export of an Nsight Systems report into columns; schemas of nsys 2022 to 2026, tables optional."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlprof_ops.analyze.columns import (
    KERNEL,
    MEMCPY,
    MEMSET,
    NO_VALUE,
    Coder,
    GpuSpans,
    Ints,
    Launches,
    MemorySamples,
    Origin,
    Spans,
    Trace,
    join,
)  # fmt: skip
from rlprof_ops.analyze.readers.errors import UnreadableReport
from rlprof_ops.analyze.spill import Parts, in_order, release

# NVTX_EVENTS.eventType, from ENUM_NSYS_EVENT_TYPE of the export itself
_PUSH_POP, _START_END, _PUSH_POP_GRAPH, _START_END_GRAPH, _DOMAIN = 59, 60, 70, 71, 75
_DOMAIN_OF_OURS = "rlprof"
# torch.autograd.profiler.emit_nvtx writes every operator as a range: "aten::view, op_id = 314290"
_OPERATOR = re.compile(r", (?:op_id|seq|sizes) = .*$")
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "Peer"}
_SMALL = 1 << 31
_BIG = 1 << 62
_BATCH_ROWS = 125_000  # rows joined to one text: 2 MB a column
_MOST_BATCHES = 10_000  # 1.25e9 rows
_OFTEN_ONE_VALUE = ("deviceId", "globalTid", "nameId", "memoryOperationType", "copyKind")
_THREADS = min(4, os.cpu_count() or 1)
# sqlite3 raises UnicodeDecodeError where it builds a message of a damaged schema
_DAMAGE = (sqlite3.Error, OSError, ValueError, OverflowError)
Columns = dict[str, npt.NDArray[Any]]


class _Export:
    """One open export: which tables and columns it has, and whole columns of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = f"file:{_quoted(path)}?mode=ro&immutable=1"
        self.connection = sqlite3.connect(self.uri, uri=True)
        self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self.tables = {row[0] for row in self.connection.execute("select name from sqlite_master where type='table'")}
        self.damage: list[str] = []

    def columns_of(self, table: str) -> set[str]:
        return {row[1] for row in self.connection.execute(f'pragma table_info("{table}")')}

    def read(self, table: str, columns: Sequence[str]) -> Columns:
        """int64 columns of a table, `NO_VALUE` for NULL and for columns this nsys did not write."""
        batches = list(self.batches(table, columns))
        return {c: np.concatenate([np.empty(0, np.int64), *(batch[c] for batch in batches)]) for c in columns}

    def batches(self, table: str, columns: Sequence[str]) -> Iterator[Columns]:
        """The same, some rows at a time in the order of the table.

        Columns come as one text each, joined by SQLite and split by NumPy: twice as fast as a Python tuple for each row.
        SQLite lets go of the interpreter while it joins, so a few threads share the rows.
        """
        if table not in self.tables:
            return
        present = self.columns_of(table)
        values = [f'coalesce("{c}", {NO_VALUE})' if c in present else str(NO_VALUE) for c in columns]
        try:
            low, high = self.connection.execute(f'select min(rowid), max(rowid) from "{table}"').fetchone()
        except sqlite3.Error as error:  # no way to go by rowid
            rows = self._read_slowly(f'select {", ".join(values)} from "{table}"', len(columns), f"{table}: {error}")
            yield dict(zip(columns, np.ascontiguousarray(rows.T), strict=True))
            return
        if low is None:
            return
        part = f'from "{table}" where rowid between ? and ?'

        def batch(first: int) -> list[Ints] | Exception:
            try:
                with contextlib.closing(sqlite3.connect(self.uri, uri=True)) as connection:
                    connection.text_factory = bytes
                    return _batch(connection, part, values, (first, first + _BATCH_ROWS - 1))
            except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
                return error

        starts = range(low, high + 1, _BATCH_ROWS)
        if len(starts) > _MOST_BATCHES:  # rowids far apart: of a damaged file, for nsys counts them up
            rows = self._read_slowly(f'select {", ".join(values)} from "{table}"', len(columns), f"{table}: rowids up to {high}")
            yield dict(zip(columns, np.ascontiguousarray(rows.T), strict=True))
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            ahead: deque[tuple[int, Future[list[Ints] | Exception]]] = deque()
            for first in (*starts, *[None] * _THREADS):
                if first is not None:
                    ahead.append((first, pool.submit(batch, first)))
                if len(ahead) > _THREADS or (first is None and ahead):
                    began, future = ahead.popleft()
                    found = future.result()
                    if isinstance(found, Exception):
                        bounds = f"where rowid between {began} and {began + _BATCH_ROWS - 1}"
                        query = f'select {", ".join(values)} from "{table}" {bounds}'
                        found = list(np.ascontiguousarray(self._read_slowly(query, len(columns), f"{table}: {found}").T))
                    yield dict(zip(columns, found, strict=True))

    def _read_slowly(self, query: str, width: int, why: str) -> Ints:
        """Row by row, keeping what is whole: the page of a damaged file, or a value of the wrong type, costs only itself."""
        if why not in self.damage:
            self.damage.append(why)
        good: list[tuple[int, ...]] = []
        try:
            for row in self.connection.execute(query):
                if all(isinstance(value, int) and -_BIG <= value < _BIG for value in row):
                    good.append(row)
        except sqlite3.Error:
            pass
        return np.array(good, np.int64).reshape(-1, width)

    def pairs(self, table: str, key: str, value: str) -> dict[Any, Any]:
        if table not in self.tables or not {key, value} <= self.columns_of(table):
            return {}
        try:
            return dict(self.connection.execute(f'select "{key}", "{value}" from "{table}"'))
        except sqlite3.Error as error:
            self.damage.append(f"table {table}: {error}")
            return {}


def _batch(connection: sqlite3.Connection, part: str, values: list[str], rows: tuple[int, int]) -> list[Ints]:
    """The columns of some rows. One that holds a single value (device, thread) is not spelt out row by row."""
    asked = [i for i, value in enumerate(values) if any(f'"{column}"' in value for column in _OFTEN_ONE_VALUE)]
    ends = "".join(f", min({values[i]}), max({values[i]})" for i in asked)
    count, *bounds = connection.execute(f"select count(*){ends} {part}", rows).fetchone()
    pairs = zip(asked, bounds[::2], bounds[1::2], strict=True)
    same = {i: low for i, low, high in pairs if count and low == high}
    varied = [i for i in range(len(values)) if i not in same]
    joined = ", ".join(f"group_concat({values[i]}, ' ')" for i in varied)
    texts = connection.execute(f"select {joined} {part}", rows).fetchone() if varied else ()
    columns = {i: np.fromstring(text or b"", np.int64, sep=" ") for i, text in zip(varied, texts, strict=True)}
    if any(not isinstance(value, int) for value in same.values()) or any(len(c) != count for c in columns.values()):
        raise ValueError("a value is no whole number")
    columns |= {i: np.full(count, value, np.int64) for i, value in same.items()}
    return [columns[i] for i in range(len(values))]


def read_nsys_sqlite(path: Path, report: Path | None = None) -> Trace:
    """Columns of one nsys export.

    Parameters
    ----------
    path: the SQLite file; `report` is the `.nsys-rep` it was made from, for messages.

    Raises `UnreadableReport` when the file is no nsys export. A damaged table is read as far as it goes.
    """
    try:
        export = _Export(path)
        if not export.tables & {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "TARGET_INFO_SESSION_START_TIME", "StringIds"}:
            raise UnreadableReport(report or path, "is a SQLite file but no nsys export: it has none of nsys's tables")
    except _DAMAGE as error:
        raise UnreadableReport(report or path, f"is no SQLite file that can be opened ({error})") from error
    try:
        return _read(export)
    except _DAMAGE as error:
        raise UnreadableReport(report or path, f"the nsys export is damaged ({error})") from error
    finally:
        export.connection.close()


def _read(export: _Export) -> Trace:
    strings: dict[int, str] = export.pairs("StringIds", "id", "value")
    names, tracks = Coder(), Coder()
    gpu = _gpu(export, strings, names)
    launches = _launches(export, strings, names, tracks)
    ranges, ops = _nvtx(export, strings, names, tracks)
    memory = _memory(export)
    trace = Trace(
        origin=Origin(kind="nsys"),
        names=names.values(),
        tracks=tracks.values(),
        ranges=ranges,
        ops=ops,
        launches=launches,
        gpu=gpu,
        memory=memory,
        events=len(gpu) + len(launches) + len(ranges) + len(ops) + len(memory),
        truncated="; ".join(export.damage),
    )
    return _placed(export, trace)


def _coded(ids: Ints, strings: dict[int, str], names: Coder, fallback: str) -> npt.NDArray[np.int32]:
    """Codes in our dictionary for nsys's string ids: one look-up per distinct id."""
    if len(ids) == 0:
        return np.empty(0, np.int32)
    low, high = int(ids.min()), int(ids.max())
    if low >= 0 and high < max(4 * len(ids), 1 << 20):  # ids are dense: a table is quicker than sorting them
        table = np.zeros(high + 1, np.int32)
        distinct = np.flatnonzero(np.bincount(ids))
        table[distinct] = [names.one(strings.get(int(i), fallback)) for i in distinct]
        return table[ids]
    distinct, inverse = np.unique(ids, return_inverse=True)
    codes = np.array([names.one(strings.get(int(i), fallback)) for i in distinct], np.int32)
    return codes[inverse]


_GPU_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId")


def _gpu(export: _Export, strings: dict[int, str], names: Coder) -> GpuSpans:
    parts = Parts()
    for kernels in export.batches("CUPTI_ACTIVITY_KIND_KERNEL", (*_GPU_COLUMNS, "demangledName")):
        parts.append(_gpu_part(kernels, KERNEL, _coded(kernels.pop("demangledName"), strings, names, "kernel")))
    for graphs in export.batches("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _GPU_COLUMNS):
        parts.append(_gpu_part(graphs, KERNEL, np.full(len(graphs["start"]), names.one("CUDA graph"), np.int32)))
    for copies in export.batches("CUPTI_ACTIVITY_KIND_MEMCPY", (*_GPU_COLUMNS, "bytes", "copyKind")):
        distinct, kinds = np.unique(copies["copyKind"], return_inverse=True)
        labels = np.array([names.one(f"Memcpy {_COPY_KINDS.get(kind, '?')}") for kind in distinct.tolist()], np.int32)
        parts.append(_gpu_part(copies, MEMCPY, labels[kinds], copies["bytes"]))
    for sets in export.batches("CUPTI_ACTIVITY_KIND_MEMSET", (*_GPU_COLUMNS, "bytes")):
        parts.append(_gpu_part(sets, MEMSET, np.full(len(sets["start"]), names.one("Memset"), np.int32), sets["bytes"]))
    return in_order(parts.table(GpuSpans))


def _gpu_part(rows: Columns, kind: int, name: Any, size_bytes: Ints | None = None) -> Columns:
    count = len(rows["start"])
    return {
        "start": rows["start"],
        "duration": _durations(rows),
        "name": name,
        "track": np.full(count, NO_VALUE, np.int32),
        "kind": np.full(count, kind, np.uint8),
        "device": _small(rows.pop("deviceId")),
        "stream": _small(rows.pop("streamId")),
        "correlation": rows["correlationId"],
        "size_bytes": np.full(count, NO_VALUE) if size_bytes is None else size_bytes,
        "collective": np.full(count, NO_VALUE, np.int32),
    }


def _durations(rows: Columns) -> Ints:
    """(n,) end - start, never negative, in the place of the ends."""
    ends: Ints = rows.pop("end")
    ends -= rows["start"]
    return np.maximum(ends, 0, out=ends)


def _launches(export: _Export, strings: dict[int, str], names: Coder, tracks: Coder) -> Launches:
    parts = Parts()
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for rows in export.batches(table, ("start", "end", "globalTid", "correlationId", "nameId")):
            parts.append({
                "start": rows["start"],
                "duration": _durations(rows),
                "name": _coded(rows.pop("nameId"), strings, names, "CUDA call"),
                "track": _threads(rows.pop("globalTid"), tracks),
                "correlation": rows["correlationId"],
            })  # fmt: skip
    return parts.table(Launches)


def _threads(ids: Ints, tracks: Coder) -> npt.NDArray[np.int32]:
    """nsys packs host, process and thread into one number: 24 bits of pid above 24 bits of tid."""
    if len(ids) and bool((ids == ids[0]).all()):
        distinct, inverse = ids[:1], np.zeros(len(ids), np.intp)
    else:
        distinct, inverse = np.unique(ids, return_inverse=True)
    codes = [tracks.one((str((int(i) >> 24) & 0xFFFFFF), str(int(i) & 0xFFFFFF))) for i in distinct]
    return np.array(codes, np.int32)[inverse] if codes else np.empty(0, np.int32)


def _nvtx(export: _Export, strings: dict[int, str], names: Coder, tracks: Coder) -> tuple[Spans, Spans]:
    """Ranges of the application and, apart from them, the operators that emit_nvtx and NCCL write as ranges.

    Where our own domain is present only its ranges are the application's: a trainer may annotate as it likes beside us.
    """
    empty = join(Spans, [])
    if "NVTX_EVENTS" not in export.tables:
        return empty, empty
    present = export.columns_of("NVTX_EVENTS")
    wanted = ("start", "end", "eventType", "globalTid", "textId", "domainId")
    chosen = ", ".join(f'"{c}"' if c in present else "null" for c in (*wanted, "text"))
    kinds = (_PUSH_POP, _START_END, _PUSH_POP_GRAPH, _START_END_GRAPH, _DOMAIN)
    query = f"select {chosen} from NVTX_EVENTS where eventType in ({', '.join(map(str, kinds))})"
    domains: dict[tuple[int, int], str] = {}
    rows: list[tuple[int, int, int, str, Any, int]] = []
    try:
        for start, end, kind, thread, text_id, domain, text in export.connection.execute(query):
            label = text if isinstance(text, str) else strings.get(text_id, "") if text_id is not None else ""
            process = thread >> 24 if isinstance(thread, int) else NO_VALUE
            if kind == _DOMAIN:
                domains[process, domain] = label
            elif isinstance(start, int) and label:
                rows.append((start, end if isinstance(end, int) else NO_VALUE, process, label, domain, thread or 0))
    except sqlite3.Error as error:
        export.damage.append(f"table NVTX_EVENTS: {error}")
    ours = any(domains.get((row[2], row[4])) == _DOMAIN_OF_OURS for row in rows)
    last = max((max(row[0], row[1]) for row in rows), default=0)
    parts: dict[bool, list[tuple[int, int, str, int]]] = {False: [], True: []}
    for start, end, process, label, domain, thread in rows:
        domain_name = domains.get((process, domain), "")
        is_op = _OPERATOR.search(label) is not None or domain_name == "NCCL" or label.startswith("nccl")
        if not is_op and ours and domain_name != _DOMAIN_OF_OURS:
            is_op = True
        end = last if end == NO_VALUE else end  # still open when the window closed
        parts[is_op].append((start, max(end - start, 0), _OPERATOR.sub("", label), thread))
    return _spans(parts[False], names, tracks), _spans(parts[True], names, tracks)


def _spans(rows: list[tuple[int, int, str, int]], names: Coder, tracks: Coder) -> Spans:
    if not rows:
        return join(Spans, [])
    start, duration, labels, threads = zip(*rows, strict=True)
    spans = Spans(
        start=np.array(start, np.int64),
        duration=np.array(duration, np.int64),
        name=names.encode(labels),
        track=_threads(np.array(threads, np.int64), tracks),
    )
    return in_order(spans)


def _memory(export: _Export) -> MemorySamples:
    """Running sum of allocations; operation 0 allocates and 1 frees (ENUM_CUDA_DEV_MEM_EVENT_OPER)."""
    rows = export.read("CUDA_GPU_MEMORY_USAGE_EVENTS", ("start", "deviceId", "bytes", "memoryOperationType"))
    order = np.argsort(rows["start"], kind="stable")
    device = _small(rows["deviceId"][order])
    change = np.where(rows["memoryOperationType"][order] == 1, -rows["bytes"][order], rows["bytes"][order])
    held = np.zeros(len(order), np.int64)
    for one in np.unique(device):
        held[device == one] = np.cumsum(change[device == one])
    return MemorySamples(rows["start"][order], device, held, np.full(len(order), NO_VALUE, np.int64))


def _placed(export: _Export, trace: Trace) -> Trace:
    """The trace with its origin known and its times moved to UTC, where the export says when the session began."""
    began = export.read("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
    environment = export.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")
    tables = [t for t in (trace.ranges, trace.ops, trace.launches, trace.gpu) if len(t)]
    first = min((int(t.start.min()) for t in tables), default=0)
    last = max((int(t.end.max()) for t in tables), default=0)
    details = export.pairs("META_DATA_EXPORT", "name", "value")
    origin = replace(
        trace.origin,
        host=str(environment.get("Hostname") or ""),
        pid=_main_process(trace),
        window_start=first,
        window_end=last,
        devices=tuple(str(v) for _, v in sorted(export.pairs("TARGET_INFO_GPU", "id", "name").items(), key=str)),
        details={
            key: str(details[key])[:200] for key in ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION") if key in details
        },
    )
    trace = replace(trace, origin=origin)
    if len(began["utcEpochNs"]) == 0 or began["utcEpochNs"][0] <= 0:
        return trace
    # from 2025 on times may be the target's own clock; before, they count from the session's start
    zero = max(int(began["systemClockNs"][0]), 0)
    trace = replace(trace, origin=replace(origin, on_utc=True))
    trace = trace.shift(int(began["utcEpochNs"][0]) - zero)
    release(trace.launches, trace.gpu)
    return trace


def _main_process(trace: Trace) -> int:
    for table in (trace.ranges, trace.launches, trace.ops):
        if len(table):
            busiest = int(np.bincount(table.track).argmax())
            return int(trace.tracks[busiest][0])
    return NO_VALUE


def _small(values: Ints) -> npt.NDArray[np.int32]:
    return np.where((values >= -1) & (values < _SMALL), values, NO_VALUE).astype(np.int32)


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path.absolute()))
