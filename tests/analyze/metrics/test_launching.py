"""Launches, queues and spreads of durations on every real trace, against an oracle that reads the file itself
and shares no code: what HolisticTraceAnalysis defines, one call and one moment at a time.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analyze.as_data import answer_of
from tests.analyze.shared import TORCH_FILES, kernel, launch, mark, real, write_trace

from rlprof_ops.analyze.metrics.distribution import distribution, merged_distribution
from rlprof_ops.analyze.metrics.gpu_work import launching

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
WHOLE = Path(__file__).parents[4] / "shared" / "data" / "torch"


@dataclass
class Call:
    """One call and the pieces of work that carry its correlation."""

    name: str
    start: int
    end: int
    pieces: list[tuple[int, int, int, int]] = field(default_factory=list)  # start, end, device, stream

    @property
    def begins(self) -> int:
        return min(piece[0] for piece in self.pieces)

    @property
    def work(self) -> int:
        return sum(end - start for start, end, _, _ in self.pieces)

    @property
    def delay(self) -> int:
        return max(self.begins - self.end, 0)


def events_of(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes())
    events: list[dict[str, Any]] = json.loads(text, parse_float=Decimal)["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and "dur" in event]


def span_of(event: dict[str, Any]) -> tuple[int, int]:
    start = round(Decimal(event["ts"]) * 1000)
    return start, start + round(Decimal(event["dur"]) * 1000)


def calls_of(events: list[dict[str, Any]]) -> list[Call]:
    calls: dict[int, Call] = {}
    for event in events:
        if str(event.get("cat")).endswith(("_runtime", "_driver")):
            correlation = (event.get("args") or {}).get("correlation", 0)
            if correlation > 0:
                calls[correlation] = Call(event["name"], *span_of(event))
    for event in events:
        args = event.get("args") or {}
        if event.get("cat") in GPU and args.get("correlation") in calls:
            place = args.get("device", event["pid"]), args.get("stream", event["tid"])
            calls[args["correlation"]].pieces.append((*span_of(event), *place))
    return [call for call in calls.values() if call.pieces]


def nearest_rank(values: list[int], share: int) -> int:
    return sorted(values)[max(-(-len(values) * share // 1000), 1) - 1]


def spread_of(values: list[int]) -> dict[str, int]:
    deviation = statistics.stdev(values) if len(values) > 1 else 0
    return {
        "total_ns": sum(values),
        "min_ns": min(values),
        "median_ns": nearest_rank(values, 500),
        "p90_ns": nearest_rank(values, 900),
        "p99_ns": nearest_rank(values, 990),
        "max_ns": max(values),
        "std_ns": round(deviation),
    }


def same(found: dict[str, int], expected: dict[str, int]) -> None:
    assert abs(found.pop("std_ns") - expected.pop("std_ns")) <= 1
    assert found == expected


def queue_of(calls: list[Call]) -> tuple[int, float, float]:
    """The longest queue, its mean by time and the share of time in which it is empty: a walk over moments."""
    moments = [(call.start, 0, 1) for call in calls]
    moments += [(max(call.begins, call.start), 1, -1) for call in calls]
    longest = length = area = empty = 0
    last = begin = min(moments)[0]
    for moment, _, change in sorted(moments):
        area += length * (moment - last)
        empty += (moment - last) * (length == 0)
        length, last = length + change, moment
        longest = max(longest, length)
    window = max(last - begin, 1)
    return longest, area / window, empty / window


def files() -> list[Path]:
    """The parts that are in the checkout, and the whole traces where they are."""
    return [*(real(f"torch/{name}.json.gz") for name in TORCH_FILES), *sorted(WHOLE.glob("*.json.gz"))]


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_every_real_trace(path: Path) -> None:
    events, answer = events_of(path), answer_of(path, jobs=1, cache=False)
    calls = calls_of(events)

    by_name: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_name[call.name].append(call)
    assert sum(row["count"] for row in answer["launches"]) == len(calls)
    if all(not row["phase"] for row in answer["launches"]):
        assert {row["call"] for row in answer["launches"]} == set(by_name)
        for row in answer["launches"]:
            mine = by_name[row["call"]]
            assert row["pieces"] == sum(len(call.pieces) for call in mine)
            assert row["shorter"] == sum(call.work < call.end - call.start for call in mine)
            same(row["calls"], spread_of([call.end - call.start for call in mine]))
            same(row["delays"], spread_of([call.delay for call in mine]))
            same(row["work"], spread_of([call.work for call in mine]))

    streams: dict[tuple[int, int], list[Call]] = defaultdict(list)
    for call in calls:
        streams[min(call.pieces)[2:]].append(call)
    assert {(row["device"], row["stream"]) for row in answer["launch_queues"]} == set(streams)
    for row in answer["launch_queues"]:
        longest, mean, empty = queue_of(streams[row["device"], row["stream"]])
        assert row["longest"] == longest
        assert row["mean"] == pytest.approx(mean, abs=6e-5)
        assert row["empty"] == pytest.approx(empty, abs=6e-6)

    lasted: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.get("cat") in GPU:
            start, end = span_of(event)
            lasted[event["name"]].append(end - start)
    for row in answer["kernel_durations"]:
        if not row["phase"] and len(row["name"]) < 400 and all(not k["phase"] for k in answer["kernels"]):
            assert row["count"] == len(lasted[row["name"]])
            same(row["durations"], spread_of(lasted[row["name"]]))


def test_what_hta_says_of_a_real_trace() -> None:
    """As HolisticTraceAnalysis 0.5.0 printed it (`get_cuda_kernel_launch_stats` and
    `get_queue_length_time_series` with HTA_DISABLE_NS_ROUNDING=1); its calls are a list of names.
    """
    path = WHOLE / "b200_eager.json.gz"
    if not path.is_file():
        pytest.skip(f"no {path.name}: it is in no checkout")
    answer = answer_of(path, jobs=1, cache=False)
    names = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
    rows = [row for row in answer["launches"] if row["call"] in names]
    assert sum(row["count"] for row in rows) == 708
    assert sum(row["shorter"] for row in rows) == 550
    for field_, total in (("calls", 6979946), ("work", 5151315), ("delays", 6577817)):
        assert sum(row[field_]["total_ns"] for row in rows) == total


def test_a_graph_is_one_launch_and_a_full_queue_is_told(tmp_path: Path) -> None:
    events = [mark("ProfilerStep#1", 0.0, 5000.0), launch(0.0, 1, 5.0, "cudaGraphLaunch")]
    events += [kernel("k", 10.0 + 2 * i, 1.0, correlation=1) for i in range(3)]
    events += [launch(20.0 + 0.5 * i, 100 + i, 0.25) for i in range(1100)]
    events += [kernel("k", 1000.0 + i, 0.5, correlation=100 + i) for i in range(1100)]
    answer = answer_of(write_trace(tmp_path / "t.json", events), jobs=1, cache=False)
    graph = next(row for row in answer["launches"] if row["call"] == "cudaGraphLaunch")
    assert (graph["count"], graph["pieces"], graph["shorter"]) == (1, 3, 1)
    assert graph["work"]["total_ns"] == 3000 and graph["delays"]["total_ns"] == 5000
    (queue,) = answer["launch_queues"]
    assert queue["launches"] == 1101 and queue["longest"] == 1100 and queue["window_ns"] == 2_099_000
    full = 1000.0 + 77 - (20.0 + 0.5 * 1023)  # from the 1,024th call until 1,023 are left: 77 have begun
    assert queue["full"] == pytest.approx((full - 1) / 2099, abs=1e-5)


def test_a_host_that_cannot_keep_up_is_told_by_its_launches(tmp_path: Path) -> None:
    events = [launch(20.0 * i, i + 1, 15.0) for i in range(200)]
    events += [kernel("k", 20.0 * i + 16, 2.0, correlation=i + 1) for i in range(200)]
    answer = answer_of(write_trace(tmp_path / "t.json", events), jobs=1, cache=False)
    (text,) = (f["text"] for f in answer["findings"] if f["kind"] == "host")
    assert text.endswith("; 100 % of 200 launches outlast their work.")


def test_of_a_larger_trace_the_first_launches_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "MOST_LAUNCHES", 50)
    events = [launch(20.0 * i, i + 1, 5.0) for i in range(200)]
    events += [kernel("k", 20.0 * i + 16, 2.0, correlation=i + 1) for i in range(200)]
    answer = answer_of(write_trace(tmp_path / "t.json", events), jobs=1, cache=False)
    assert [row["count"] for row in answer["launches"]] == [50]
    assert [row["launches"] for row in answer["launch_queues"]] == [50]


durations = st.lists(st.integers(0, 10**7), min_size=1, max_size=300)


@settings(deadline=None)
@given(st.lists(durations, min_size=1, max_size=6))
def test_ranks_merge(parts: list[list[int]]) -> None:
    """Count, sum and extremes exactly; a quantile is exact for one, and off by few calls for several."""
    every = sorted(value for part in parts for value in part)
    found = merged_distribution([distribution(np.sort(np.array(part, np.int64))) for part in parts])
    row = found.row()
    assert (found.count, row.total_ns, row.min_ns, row.max_ns) == (
        len(every),
        sum(every),
        every[0],
        every[-1],
    )
    assert abs(row.std_ns - (statistics.stdev(every) if len(every) > 1 else 0)) <= 1
    for share, value in ((500, row.median_ns), (900, row.p90_ns), (990, row.p99_ns)):
        off = 0 if len(parts) == 1 else len(every) / 20 + len(parts)
        rank = max(-(-len(every) * share // 1000), 1) - 1
        low, high = every[max(round(rank - off), 0)], every[min(round(rank + off), len(every) - 1)]
        assert low <= value <= high
