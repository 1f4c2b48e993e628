"""Columns of a torch trace: times from their text, what a cache gives back, what a full disk costs."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.shared import real  # noqa: E402

from rlprof_ops.analyze.columns import Trace  # noqa: E402
from rlprof_ops.analyze.readers import inflate, torch_trace  # noqa: E402


def rows(trace: Trace) -> dict[str, list[tuple[Any, ...]]]:
    """Every table as a list of rows, codes replaced by what they stand for; in order of start, for batches
    may differ.
    """
    found = {}
    for name in ("ranges", "ops", "launches", "gpu", "memory"):
        table = getattr(trace, name)
        columns = [
            getattr(table, f).tolist()
            for f in table.__struct_fields__
            if f not in ("name", "track", "collective")
        ]
        if hasattr(table, "name"):
            columns.append([trace.names[code] for code in table.name])
            columns.append([trace.tracks[code] if code >= 0 else None for code in table.track])
        if hasattr(table, "collective"):
            columns.append([repr(trace.collectives[code]) if code >= 0 else "" for code in table.collective])
        found[name] = sorted(zip(*columns, strict=True), key=repr)
    return found


def test_a_batch_whose_times_are_too_fine_is_read_from_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflate, "PIECE_BYTES", 4096)
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "pid": 0,
            "tid": 7,
            "ts": 1_700_000_000_000_000 + i,
            "dur": 0.0005,
            "args": {"stream": 7},
        }
        for i in range(200)
    ]
    path = tmp_path / "utc.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = torch_trace.read_torch(path)
    assert trace.gpu.start.tolist() == [(1_700_000_000_000_000 + i) * 1000 for i in range(200)]
    assert set(trace.gpu.duration.tolist()) == {1}


def test_the_cache_gives_back_every_row_of_several_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlprof_ops.analyze.readers import cache, spill

    path = real("torch/sampled_rank-0.json.gz")
    trace = torch_trace.read_torch(path)
    report = tmp_path / path.name
    report.write_bytes(path.read_bytes())
    report.chmod(0o640)
    monkeypatch.setattr(cache, "_GROUP_ROWS", 1000)
    monkeypatch.setattr(spill, "BLOCK_ROWS", 700)
    assert cache.store(trace, report, "digest")
    again = cache.load(report, "digest").trace
    assert again is not None and rows(again) == rows(trace)
    assert cache.cache_path(report).stat().st_mode & 0o777 == 0o640, "it is open to whom the report is"


def test_a_full_disk_costs_memory_and_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlprof_ops.analyze.columns import MemorySamples
    from rlprof_ops.analyze.readers import spill

    monkeypatch.setattr(spill, "BLOCK_ROWS", 10)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (300, unlimited[1])
    )  # a file may take 300 bytes, then writing fails
    try:
        parts = spill.Parts()
        for first in range(0, 100, 4):
            part = np.arange(first, first + 4)
            parts.append(
                {
                    "time": part,
                    "track": part.astype(np.int32),
                    "device": part.astype(np.int32),
                    "allocated_bytes": part * 2,
                    "reserved_bytes": part * 3,
                }
            )
        spilled, held = parts._spilled_rows, len(parts._held)
        table = parts.table(MemorySamples)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        signal.signal(signal.SIGXFSZ, ignored)
    assert spilled and held
    assert table.time.tolist() == list(range(100)) and table.reserved_bytes.tolist() == [
        3 * i for i in range(100)
    ]
