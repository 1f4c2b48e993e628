"""Small nsys exports made on the spot: any number of processes, GPUs and ranges, as nsys 2024 has them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

UTC = 1_795_227_257_000_000_000
MS = 1_000_000


@dataclass(frozen=True)
class Work:
    """One kernel: its launch at `asked`, a call of `took` ns with a correlation id, and when it ran."""

    name: str
    asked: int
    start: int
    end: int
    correlation: int
    device: int = 0
    took: int = 2000


@dataclass(frozen=True)
class Process:
    pid: int
    ranges: tuple[tuple[str, int, int], ...] = ()
    work: tuple[Work, ...] = ()
    gpus: dict[int, str] = field(default_factory=dict)  # its own device id -> UUID


def write_export(path: Path, *processes: Process, host: str = "n0", utc: int = UTC) -> Path:
    c = sqlite3.connect(path)
    c.executescript(
        """
        create table StringIds(id INTEGER PRIMARY KEY, value TEXT);
        create table CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, end INTEGER, deviceId INTEGER,
            contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
            demangledName INTEGER, shortName INTEGER);
        create table CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER, end INTEGER, globalTid INTEGER,
            correlationId INTEGER, nameId INTEGER);
        create table NVTX_EVENTS(start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,
            textId INTEGER, domainId INTEGER);
        create table TARGET_INFO_SESSION_START_TIME(utcEpochNs INTEGER);
        create table TARGET_INFO_SYSTEM_ENV(name TEXT, value TEXT);
        create table TARGET_INFO_GPU(id INTEGER, name TEXT, uuid TEXT, busLocation TEXT);
        create table TARGET_INFO_CUDA_DEVICE(gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT,
            numMultiprocessors INTEGER);
        """
    )
    c.execute("insert into TARGET_INFO_SESSION_START_TIME values(?)", (utc,))
    c.execute("insert into TARGET_INFO_SYSTEM_ENV values('Hostname', ?)", (host,))
    names: dict[str, int] = {}
    physical = sorted({uuid for process in processes for uuid in process.gpus.values()})
    for number, uuid in enumerate(physical):
        c.execute(
            "insert into TARGET_INFO_GPU values(?, 'NVIDIA H100', ?, ?)",
            (number, uuid, f"0000:{number:02x}:00.0"),
        )
    for process in processes:
        thread = (0x1000000 | process.pid) << 24 | process.pid
        for device, uuid in process.gpus.items():
            c.execute(
                "insert into TARGET_INFO_CUDA_DEVICE values(?,?,?,?,132)",
                (physical.index(uuid), device, process.pid, uuid),
            )
        for name, start, end in process.ranges:
            c.execute("insert into NVTX_EVENTS values(?,?,59,?,?,null,0)", (start, end, name, thread))
        for work in process.work:
            code = names.setdefault(work.name, len(names) + 1)
            c.execute(
                "insert into CUPTI_ACTIVITY_KIND_KERNEL values(?,?,?,1,7,?,?,?,?)",
                (work.start, work.end, work.device, work.correlation, thread & ~0xFFFFFF, code, code),
            )
            c.execute(
                "insert into CUPTI_ACTIVITY_KIND_RUNTIME values(?,?,?,?,0)",
                (work.asked, work.asked + work.took, thread, work.correlation),
            )
    c.executemany(
        "insert into StringIds values(?,?)",
        [(0, "cudaLaunchKernel"), *((code, name) for name, code in names.items())],
    )
    c.commit()
    c.close()
    return path


def two_phases(
    pid: int, first: str, second: str, begin: int = 0, kernels: int = 33, gpus: dict[int, str] | None = None
) -> Process:
    """One step of two phases of 20 ms, kernels evenly in both, numbered from 131 as in real reports of two
    processes.
    """
    each = 20 * MS // kernels
    ranges = [
        ("step 3", begin, begin + 40 * MS),
        (first, begin, begin + 20 * MS),
        (second, begin + 20 * MS, begin + 40 * MS),
    ]
    work = [
        Work(
            f"{phase}_kernel",
            begin + place * 20 * MS + i * each + 5000,
            begin + place * 20 * MS + i * each + 10_000,
            begin + place * 20 * MS + i * each + 10_000 + each // 2,
            131 + place * kernels + i,
        )
        for place, phase in enumerate((first, second))
        for i in range(kernels)
    ]
    return Process(pid, tuple(ranges), tuple(work), gpus or {})


# as nsys 2025 names them on an H100, but for what is not kept
METRICS = (
    "SMs Active [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "NVLink RX Requests Protocol Data [Throughput %]",
    "NVLink RX Requests User Data [Throughput %]",
    "NVLink RX Responses User Data [Throughput %]",
    "PCIe RX Throughput [Throughput %]",
    "PCIe Read Requests to BAR1 [Requests]",
    "Compute Warps in Flight [Avg]",
    "GPC Clock Frequency [MHz]",
)


def add_metrics(path: Path, samples: dict[int, list[tuple[int, dict[str, int]]]]) -> Path:
    """Puts GPU metrics into an export: GPU (its id in TARGET_INFO_GPU) -> (time, metric -> value), as nsys
    2024 and later have them.
    """
    c = sqlite3.connect(path)
    c.executescript(
        """
        create table GPU_METRICS(rawTimestamp INTEGER, timestamp INTEGER, typeId INTEGER NOT NULL,
            metricId INTEGER NOT NULL, value INTEGER NOT NULL);
        create table TARGET_INFO_GPU_METRICS(typeId INTEGER NOT NULL, sourceId INTEGER,
            typeName TEXT, metricId INTEGER NOT NULL, metricName TEXT NOT NULL);
        """
    )
    for gpu, rows in samples.items():
        type_id = 0x40001200 | gpu
        for number, name in enumerate(METRICS):
            named = (type_id, 7, "GPU Metrics [gh100]", number, name)
            c.execute("insert into TARGET_INFO_GPU_METRICS values(?,?,?,?,?)", named)
        c.executemany(
            "insert into GPU_METRICS values(?,?,?,?,?)",
            [
                (time, time, type_id, METRICS.index(name), value)
                for time, values in rows
                for name, value in values.items()
            ],
        )
    c.commit()
    c.close()
    return path
