"""What NCCL's own ranges in an nsys export say of its kernels: bytes, communicator, number of ranks.

NCCL annotates each call with a typed NVTX payload. Its fields are described by NVTX_PAYLOAD_SCHEMA_ENTRIES,
and `nsys export --include-blobs=true` writes the values to NVTX_EVENTS.binaryData: 32 bytes of header
(domain, schema and size as 64-bit numbers), then the payload.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlprof_ops.analyze.columns import (
    NO_VALUE,
    Coder,
    Collective,
    GpuSpans,
    Launches,
    LaunchIndex,
    Track,
    codes_where,
)
from rlprof_ops.analyze.kernel_names import communicates
from rlprof_ops.analyze.readers.nsys_tables import Export
from rlprof_ops.analyze.readers.nvtx.ranges import threads

_HEADER = struct.Struct("<QQQQ")
_INT32, _UINT64, _SIZE = 5, 18, 22  # of nvtxPayloadSchemaEntry_t.type
_FORMATS = {_INT32: struct.Struct("<i"), _UINT64: struct.Struct("<Q"), _SIZE: struct.Struct("<Q")}
_OPERATION = re.compile(
    r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AlltoAll|AllToAll|Gather|Scatter|Send|Recv)",
)
_RANGE = 59
_MAX_BYTES = 1 << 50
Fields = dict[str, tuple[int, struct.Struct]]  # name of a field -> its place


@dataclass(frozen=True)
class _Call:
    start: int
    op: str
    communicator: int
    size_bytes: int


def with_nccl(
    export: Export,
    strings: dict[int, str],
    names: tuple[str, ...],
    tracks: Coder[Track],
    gpu: GpuSpans,
    launches: Launches,
) -> tuple[Collective, ...]:
    """The collectives that NCCL's ranges tell; their kernels in `gpu` get the codes of theirs.

    A kernel is of the calls that its thread made since it launched the one before: one, or those of one
    group. Where they are of several operations or communicators, nothing is said of it.
    """
    calls, ranks = _calls(export, strings, tracks)
    if not calls:
        return ()
    rows = np.flatnonzero(codes_where(names, communicates)[gpu.name])
    asked = LaunchIndex(launches).rows(gpu.correlation[rows])
    rows, asked = rows[asked >= 0], asked[asked >= 0]
    order = np.argsort(launches.start[asked], kind="stable")
    found = Coder[Collective]()
    seen: dict[int, int] = {}  # thread -> how many of its calls have their kernel
    for row, launch in zip(rows[order].tolist(), asked[order].tolist(), strict=True):
        thread = int(launches.track[launch])
        mine = calls.get(thread, [])
        before = bisect_left(mine, int(launches.start[launch]), key=lambda call: call.start)
        group = mine[seen.get(thread, 0) : before]
        seen[thread] = max(before, seen.get(thread, 0))
        if group and len({(call.op, call.communicator) for call in group}) == 1:
            process = tracks.values()[thread][0]
            said = _collective(group, ranks.get((process, group[0].communicator), NO_VALUE))
            gpu.collective[row] = found.one(said)
    return found.values()


def _collective(group: list[_Call], ranks: int) -> Collective:
    op, total = group[0].op, sum(call.size_bytes for call in group)
    name = f"{group[0].communicator:#x}" if group[0].communicator else ""
    # of a gather or scatter NCCL tells the part of one rank
    whole = total * ranks if 0 < ranks < 1 << 20 else NO_VALUE
    sent = whole if op == "reducescatter" else total
    received = whole if op == "allgather" else total
    return Collective(op, name, ranks, "", sent, received, NO_VALUE, name)


def _calls(
    export: Export, strings: dict[int, str], tracks: Coder[Track]
) -> tuple[dict[int, list[_Call]], dict[tuple[str, int], int]]:
    """The calls of each thread in order of time, and the ranks of each communicator of a process."""
    calls: dict[int, list[_Call]] = defaultdict(list)
    ranks: dict[tuple[str, int], int] = {}
    schemas = _schemas(export)
    if not schemas or "binaryData" not in export.columns_of("NVTX_EVENTS"):
        return calls, ranks
    codes: dict[int, int] = {}
    for start, thread, name, blob in _payloads(export, strings):
        said = _decoded(blob, schemas)
        communicator = next((v for k, v in said.items() if "communicator" in k), 0)
        if thread not in codes:
            codes[thread] = int(threads(np.array([thread], np.int64), tracks)[0])
        for label, value in said.items():
            if label.startswith("no. of ranks") and value > 0:
                ranks[tracks.values()[codes[thread]][0], communicator] = value
        size = next((v for k, v in said.items() if k.startswith("message size")), NO_VALUE)
        operation = _OPERATION.match(name)
        if operation and 0 <= size < _MAX_BYTES:
            op = operation.group(1).lower().replace("bcast", "broadcast")
            calls[codes[thread]].append(_Call(start, op, communicator, size))
    return {thread: sorted(mine, key=lambda c: c.start) for thread, mine in calls.items()}, ranks


def _payloads(export: Export, strings: dict[int, str]) -> Iterator[tuple[int, int, str, bytes]]:
    query = (
        "select start, globalTid, text, textId, binaryData from NVTX_EVENTS"
        f" where eventType = {_RANGE} and typeof(binaryData) = 'blob'"
    )
    try:
        for start, thread, name, text_id, blob in export.connection.execute(query):
            label = name if isinstance(name, str) else strings.get(text_id, "")
            if isinstance(start, int) and isinstance(thread, int) and label.startswith("nccl"):
                yield start, thread, label, blob
    except sqlite3.Error as error:
        export.damage.append(f"payloads of table NVTX_EVENTS: {error}")


def _schemas(export: Export) -> dict[int, Fields]:
    """Schema -> its fields by name, in lower case; of several processes the first counts."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    found: dict[int, Fields] = defaultdict(dict)
    if table not in export.tables or not {"schemaId", "type", "name", "offset"} <= export.columns_of(table):
        return found
    try:
        for schema, kind, name, offset in export.connection.execute(
            f"select schemaId, type, name, offset from {table}"
        ):
            if isinstance(name, str) and kind in _FORMATS and (offset or 0) in range(1 << 16):
                found[schema].setdefault(name.lower(), (offset or 0, _FORMATS[kind]))
    except (sqlite3.Error, TypeError) as error:
        export.damage.append(f"table {table}: {error}")
    return found


def _decoded(blob: bytes, schemas: dict[int, Fields]) -> dict[str, int]:
    if len(blob) < _HEADER.size:
        return {}
    _, schema, size, _ = _HEADER.unpack_from(blob)
    payload = blob[_HEADER.size : _HEADER.size + size]
    return {
        name: form.unpack_from(payload, offset)[0]
        for name, (offset, form) in schemas.get(schema, {}).items()
        if offset + form.size <= len(payload)
    }
