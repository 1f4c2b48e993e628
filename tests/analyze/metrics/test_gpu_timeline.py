"""GPU time by kind: against TraceLens's numbers on real traces, an independent naive oracle, and HTA's
rounding.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
structs = pytest.importorskip("msgspec").structs

from tests.analyze.shared import TORCH_FILES, real  # noqa: E402

from rlprof_ops.analyze.columns import LaunchIndex, take  # noqa: E402
from rlprof_ops.analyze.metrics import kernels, windowed_work  # noqa: E402
from rlprof_ops.analyze.metrics.gpu_time import gpu_unions  # noqa: E402
from rlprof_ops.analyze.readers import read_report, spill  # noqa: E402
from rlprof_ops.analyze.report_model import GpuTimes  # noqa: E402
from rlprof_ops.analyze.run.identity import ReportFile  # noqa: E402
from rlprof_ops.analyze.run.summary import summarise  # noqa: E402

EXPECTED = json.loads((Path(__file__).parents[1] / "expected" / "gpu_timeline.json").read_text())
NAMES = {
    "computation_time": "compute_ns",
    "exposed_comm_time": "exposed_communication_ns",
    "exposed_memcpy_time": "exposed_memcpy_ns",
    "busy_time": "busy_ns",
    "idle_time": "idle_ns",
    "total_time": "window_ns",
    "total_comm_time": "communication_ns",
    "total_memcpy_time": "memcpy_ns",
}
ONE_MICROSECOND = 1000


def assert_as_expected(times: GpuTimes, expected: dict[str, int]) -> None:
    for theirs, ours in NAMES.items():
        assert abs(getattr(times, ours) - expected[theirs]) <= ONE_MICROSECOND, (
            theirs,
            getattr(times, ours),
            expected[theirs],
        )


@pytest.mark.parametrize("name", [name for name in TORCH_FILES if not name.endswith("_part")])
def test_equals_tracelens_on_real_traces(name: str) -> None:
    trace = read_report(real(f"torch/{name}.json.gz"), cache=False)
    expected = EXPECTED[f"{name}.json.gz"]
    if expected["all"] is None:
        assert len(trace.gpu) == 0
        return
    assert_as_expected(gpu_unions(trace.gpu, trace.names).whole(), expected["all"])
    linked = LaunchIndex(trace.launches).rows(trace.gpu.correlation) >= 0
    assert_as_expected(gpu_unions(take(trace.gpu, linked), trace.names).whole(), expected["linked"])


def naive(path: Path) -> dict[str, int]:
    """Sweeps over every boundary, one moment after the other, in exact decimals: shares no code and no
    idea with ours.
    """
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal, parse_int=Decimal)[
        "traceEvents"
    ]
    edges: list[tuple[int, int, str]] = []
    for event in events:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        name = event["name"].lower()
        kind = (
            "copy"
            if event["cat"] == "gpu_memcpy" or name.startswith(("memory_copy", "__amd_rocclr_copy"))
            else "compute"
        )
        if kind == "compute" and any(word in name for word in ("nccl", "rccl", "cross_device_reduce")):
            kind = "talk"
        start, end = int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000)
        edges += [(start, 1, kind), (end, -1, kind)]
    edges.sort()
    running = {"compute": 0, "talk": 0, "copy": 0}
    out = {"compute_ns": 0, "exposed_communication_ns": 0, "exposed_memcpy_ns": 0, "idle_ns": 0}
    for (now, change, kind), (after, _, _) in itertools.pairwise(edges):
        running[kind] += change
        if running["compute"]:
            out["compute_ns"] += after - now
        elif running["talk"]:
            out["exposed_communication_ns"] += after - now
        elif running["copy"]:
            out["exposed_memcpy_ns"] += after - now
        else:
            out["idle_ns"] += after - now
    return out


@pytest.mark.parametrize("name", [n for n in TORCH_FILES if n != "rank_not_found"])
def test_equals_the_naive_sweep_to_the_nanosecond(name: str) -> None:
    path = real(f"torch/{name}.json.gz")
    trace = read_report(path, cache=False)
    times = structs.asdict(gpu_unions(trace.gpu, trace.names).whole())
    truth = naive(path)
    assert {key: times[key] for key in truth} == truth


@pytest.mark.parametrize("name", [n for n in TORCH_FILES if n != "rank_not_found"])
def test_time_is_conserved(name: str) -> None:
    path = real(f"torch/{name}.json.gz")
    summary = summarise(read_report(path, cache=False), _report(path))
    for times, idle in [(d.times, d.idle) for d in summary.devices] + [
        (s.gpu, s.idle) for s in (*summary.steps, *summary.phases)
    ]:
        assert times is not None and idle is not None
        assert times.busy_ns + times.idle_ns == times.window_ns
        assert times.compute_ns + times.exposed_communication_ns + times.exposed_memcpy_ns == times.busy_ns
        assert idle.queued_ns + idle.synchronising_ns + idle.waiting_ns + idle.host_ns == times.idle_ns
        assert min(structs.astuple(idle)) >= 0 and min(structs.astuple(times)) >= 0
    for step in summary.steps:
        parts = [p for p in summary.phases if p.step == step.step]
        assert sum(p.duration_ns for p in parts) <= step.end - step.start
    assert sum(k.count for k in summary.kernels) == sum(d.kernels for d in summary.devices)


WITH_GPU = [n for n in TORCH_FILES if n != "rank_not_found"]


@pytest.mark.parametrize(
    ("name", "rows"), [("sglang_qwen3_8b_decode", 1), *((n, r) for n in WITH_GPU for r in (23, 500))]
)
def test_a_stretch_at_a_time_gives_the_same(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from columns that were spilled to files."""
    path = real(f"torch/{name}.json.gz")
    whole = summarise(read_report(path, cache=False), _report(path), 0.0)
    monkeypatch.setattr(windowed_work, "STRETCH_ROWS", rows)
    monkeypatch.setattr(windowed_work, "_LOOK_AHEAD", 3)
    monkeypatch.setattr(kernels, "_ROWS", rows * 50)
    monkeypatch.setattr(spill, "BLOCK_ROWS", 100)
    parts = summarise(read_report(path, cache=False), _report(path), 0.0)
    for field in ("steps", "phases", "devices", "kernels", "ops", "collectives"):
        assert getattr(parts, field) == getattr(whole, field), field


def test_hta_differs_because_it_rounds_to_microseconds(tmp_path: Path) -> None:
    """HTA takes ceil(start) and floor(end) in µs (trace_parser.py): reproduced here, its idle time of
    decode-like work is several times the true one, and kernels below 1 µs count for nothing or less.
    """
    path = real("torch/sglang_qwen3_8b_decode.json.gz")
    trace = read_report(path, cache=False)
    true = gpu_unions(trace.gpu, trace.names).whole()
    start = -(-trace.gpu.start // 1000)
    end = trace.gpu.end // 1000
    rounded_busy = sum(max(0, int(e) - int(s)) for s, e in _joined(start, end)) * 1000
    assert rounded_busy < true.busy_ns
    loss = math.fsum([true.busy_ns, -rounded_busy]) / true.busy_ns
    assert 0.03 < loss < 0.10  # measured on this trace: 5.7 % of the kernel time


def _joined(start: Any, end: Any) -> list[tuple[int, int]]:
    out: list[list[int]] = []
    for s, e in sorted(zip(start.tolist(), end.tolist(), strict=True)):
        if e <= s:
            continue
        if out and s <= out[-1][1]:
            out[-1][1] = max(out[-1][1], e)
        else:
            out.append([s, e])
    return [(a, b) for a, b in out]


def _report(path: Path) -> ReportFile:
    return ReportFile(path.name, "torch", "worker", 0, "", None, None, None, None, path.stat().st_size)
