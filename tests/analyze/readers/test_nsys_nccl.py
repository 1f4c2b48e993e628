"""Bytes and communicators of NCCL's kernels from the payloads of its ranges in nsys exports.

The schema rows are those of a real export. That of the values, which it was cut without, is as two decoders
that read such exports have it: domain, schema and size as 64-bit numbers, eight bytes more, the payload.
"""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from msgspec import structs
from tests.analyze.nsys_exports import MS, Process, Work, write_export
from tests.analyze.shared import real

from rlprof_ops.analyze.causes.collectives import collective_rows
from rlprof_ops.analyze.readers.nsys_sqlite import read_nsys_sqlite
from rlprof_ops.analyze.run.identity import find_reports
from rlprof_ops.analyze.run.process_summary import Summary
from rlprof_ops.analyze.run.summary import summarise_file

INIT, ALL_REDUCE = 16777218, 16777220  # schemas of the real export
COMM, OTHER_COMM = 0x9E3779B97F4A7C15, 0x1234
MIB = 1 << 20


def blob(schema: int, payload: bytes) -> bytes:
    return struct.pack("<QQQQ", 1, schema, len(payload), 32 + len(payload)) + payload


def call(name: str, start: int, size: int, comm: int = COMM) -> tuple[str, int, int, bytes]:
    return name, start, start + 1000, blob(ALL_REDUCE, struct.pack("<QQ", comm, size))


def export(path: Path, calls: list[tuple[str, int, int, bytes]], kernels: list[tuple[str, int, int]]) -> Path:
    """`kernels`: (name, launched at, length)."""
    work = tuple(
        Work(name, asked, asked + 5_000, asked + 5_000 + length, 10 + i)
        for i, (name, asked, length) in enumerate(kernels)
    )
    write_export(path, Process(100, (("step 3", 0, 40 * MS), ("train", 0, 40 * MS)), work))
    source = sqlite3.connect(f"file:{real('h100_2gpu_part.sqlite')}?mode=ro", uri=True)
    target = sqlite3.connect(path)
    for table in ("NVTX_PAYLOAD_SCHEMAS", "NVTX_PAYLOAD_SCHEMA_ENTRIES"):
        (sql,) = source.execute("select sql from sqlite_master where name = ?", (table,)).fetchone()
        target.execute(sql)
        rows: list[Any] = source.execute(f"select * from {table}").fetchall()
        target.executemany(f"insert into {table} values({','.join('?' * len(rows[0]))})", rows)
    target.execute("alter table NVTX_EVENTS add column binaryData BLOB")
    thread = (0x1000000 | 100) << 24 | 100
    target.executemany(
        "insert into NVTX_EVENTS values(?, ?, 59, ?, ?, null, 1, ?)",
        [(start, end, name, thread, data) for name, start, end, data in calls],
    )
    target.commit()
    target.close()
    source.close()
    return path


def rows_of(folder: Path) -> list[dict[str, Any]]:
    (report,) = find_reports(folder)
    read = [s for s in summarise_file(folder, report, cache=False) if isinstance(s, Summary)]
    return [structs.asdict(row) for row in collective_rows(read, {})]


def test_an_all_reduce_has_its_bytes_and_its_bus_bandwidth(tmp_path: Path) -> None:
    """Eight ranks, as the communicator's own range tells; 64 MiB in 1 ms; two calls in one kernel."""
    init = struct.pack("<Qiii", COMM, 8, 3, 3).ljust(24, b"\0")
    calls = [
        ("ncclCommInitRankConfig", 1_000, 2_000, blob(INIT, init)),
        call("ncclAllReduce", 1 * MS, 64 * MIB),
        call("ncclAllReduce", 5 * MS, 32 * MIB),
        call("ncclAllReduce", 5 * MS + 2_000, 32 * MIB),
    ]
    kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    export(tmp_path / "rank0.sqlite", calls, [(kernel, 1 * MS + 500, MS), (kernel, 5 * MS + 4_000, MS)])
    (row,) = rows_of(tmp_path)
    assert (row["op"], row["group_size"], row["count"]) == ("allreduce", 8, 2)
    assert row["message_bytes"] == 128 * MIB and row["group"] == f"{COMM:#x}"
    assert row["algorithm_gb_per_s"] == pytest.approx(64 * MIB / MS, rel=1e-3)
    assert row["bus_gb_per_s"] == pytest.approx(64 * MIB / MS * 2 * 7 / 8, rel=1e-3)


def test_nothing_is_said_of_a_kernel_that_may_be_of_several_communicators(tmp_path: Path) -> None:
    calls = [call("ncclAllReduce", MS, MIB), call("ncclAllReduce", MS + 2_000, MIB, OTHER_COMM)]
    export(tmp_path / "rank0.sqlite", calls, [("ncclDevKernel_AllReduce_Sum_bf16", MS + 5_000, MS)])
    (row,) = rows_of(tmp_path)
    assert row["message_bytes"] is None and row["group_size"] == -1


def test_without_the_number_of_ranks_there_is_no_bus_bandwidth(tmp_path: Path) -> None:
    """The factor of an all-reduce lies between 1 and 2: which, only the number of ranks tells."""
    export(
        tmp_path / "rank0.sqlite",
        [call("ncclAllReduce", MS, MIB)],
        [("ncclDevKernel_AllReduce_Sum_bf16", MS + 500, MS)],
    )
    (row,) = rows_of(tmp_path)
    assert row["message_bytes"] == MIB and row["bus_gb_per_s"] is None and row["algorithm_gb_per_s"] > 1


@pytest.mark.parametrize(
    "data", [b"", b"x" * 31, blob(ALL_REDUCE, b""), blob(99, b"y" * 16), blob(ALL_REDUCE, b"\xff" * 16)]
)
def test_a_damaged_payload_costs_its_call_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rank0.sqlite"
    calls = [("ncclAllReduce", MS, MS + 1000, data), call("ncclAllReduce", 3 * MS, MIB)]
    kernel = "ncclDevKernel_AllReduce_Sum_bf16"
    export(path, calls, [(kernel, MS + 500, MS), (kernel, 3 * MS + 500, MS)])
    trace = read_nsys_sqlite(path)
    assert [c.in_bytes for c in trace.collectives] == [MIB] and trace.gpu.collective.tolist() == [-1, 0]
