"""What the GPUs' own counters said, from an nsys export: `GPU_METRICS`, one row a sample and metric.

The lowest byte of `typeId` is the GPU, as `TARGET_INFO_GPU.id` numbers it (NVIDIA's own recipe reads it
so); `TARGET_INFO_GPU_METRICS` names a metric of a type. A value holds for the time since the sample
before it. nsys before 2024 exports these samples as generic events, which are not read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from rlprof_ops.analyze.columns import Ints, MetricSamples

if TYPE_CHECKING:
    from rlprof_ops.analyze.readers.nsys_tables import Export

# What is kept, and the names that nsys has for it (several sets of metrics, several generations of GPUs).
# Directions of one link stay apart: their shares are of each direction's own peak.
KEPT: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("SM active", r"SMs? Active\b"),
        ("tensor active", r"Tensor Active\b"),
        ("SM issue", r"SM Issue( Active)?\b"),
        ("DRAM read", r"(DRAM|GPU Memory) Read\b"),
        ("DRAM write", r"(DRAM|GPU Memory) Write\b"),
        ("NVLink received", r"NVLink RX\b(?!.*protocol)"),
        ("NVLink sent", r"NVLink TX\b(?!.*protocol)"),
        ("PCIe received", r"PCIe (RX Throughput|Read Bandwidth)\b"),
        ("PCIe sent", r"PCIe (TX Throughput|Write Bandwidth)\b"),
    )
)
_SHARE = re.compile(r"\[Throughput %\]|^[^\[]*$")  # other units ([Avg], [Requests], [MHz]) are no shares
_PERCENT = 100


def kept_name(name: str) -> str | None:
    """The metric that one of nsys's is kept as; None for what is no share of a peak, or not asked for."""
    if not _SHARE.search(name):
        return None
    return next((kept for kept, pattern in KEPT if pattern.match(name)), None)


def read_metrics(export: Export) -> tuple[MetricSamples, tuple[str, ...]]:
    """The samples that are kept, and the GPUs that `gpu` codes: their UUIDs, or else "GPU 3"."""
    wanted = _wanted(export)
    if not wanted or "GPU_METRICS" not in export.tables:
        return MetricSamples.none(), ()
    parts: list[tuple[Ints, Ints, Ints, Ints]] = []
    for batch in export.batches("GPU_METRICS", ("timestamp", "typeId", "metricId", "value")):
        for (type_id, metric), place in wanted.items():
            mine = (batch["typeId"] == type_id) & (batch["metricId"] == metric) & (batch["value"] >= 0)
            count = int(mine.sum())
            if count:
                same = np.full(count, type_id & 0xFF), np.full(count, place)
                parts.append((batch["timestamp"][mine], *same, batch["value"][mine]))
    if not parts:
        return MetricSamples.none(), ()
    time, gpu, code, value = (np.concatenate([part[i] for part in parts]) for i in range(4))
    # requests and responses of a link, which share its direction's peak, are added
    keys, same_time = np.unique(np.stack((gpu, code, time)), axis=1, return_inverse=True)
    share = np.minimum(np.bincount(same_time.ravel(), weights=value) / _PERCENT, 1.0)
    numbers = np.unique(keys[0])
    uuids = export.pairs("TARGET_INFO_GPU", "id", "uuid")
    names = tuple(str(uuids.get(number) or f"GPU {number}") for number in numbers.tolist())
    codes = np.searchsorted(numbers, keys[0]).astype(np.int32)
    return MetricSamples(keys[2].copy(), codes, keys[1].astype(np.int32), share), names


def _wanted(export: Export) -> dict[tuple[int, int], int]:
    """(typeId, metricId) -> place in `KEPT`. Of metrics that are kept as one, a link's are all taken, of the
    others the first.
    """
    import sqlite3  # late: every report has the names above, few have samples

    table = "TARGET_INFO_GPU_METRICS"
    if table not in export.tables:
        return {}
    try:
        query = f"select typeId, metricId, metricName from {table} order by typeId, metricId"
        rows = export.connection.execute(query).fetchall()
    except sqlite3.Error as error:
        export.damage.append(f"table {table}: {error}")
        return {}
    known = [name for name, _ in KEPT]
    found: dict[tuple[int, int], int] = {}
    taken: set[tuple[int, str]] = set()
    for type_id, metric, name in rows:
        if not (isinstance(type_id, int) and isinstance(metric, int) and isinstance(name, str)):
            continue
        kept = kept_name(name)
        if kept and (kept.startswith("NVLink") or (type_id, kept) not in taken):
            taken.add((type_id, kept))
            found[type_id, metric] = known.index(kept)
    return found
