"""Every number of a process against a brute-force oracle: a sweep over all boundaries in whole nanoseconds
that shares no code with the analysis and reads the files itself, on real traces and on random ones.
"""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.analyze.nsys_exports import Process, Work, write_export
from tests.analyze.shared import TORCH_FILES, kernel, launch, mark, real, write_trace, x

from rlprof_ops.analyze.output.tables.work_tables import shared_gpu_rows
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.merge import merge
from rlprof_ops.analyze.run.process_summary import Summary
from rlprof_ops.analyze.run.summary import summarise_file

EXAMPLES = int(os.environ.get("RLPROF_ORACLE_EXAMPLES", "60"))
RANDOM = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
COMPUTE, TALK, COPY = "compute", "communication", "memcpy"
Span = tuple[int, int]


@dataclass
class Done:
    """One piece of work on a GPU, as the oracle sees it."""

    name: str
    kind: str
    start: int
    end: int
    device: int
    asked: int | None = None
    returned: int | None = None  # the call that asked for it


@dataclass
class Truth:
    """One process, as the oracle sees it."""

    work: list[Done] = field(default_factory=list)
    phases: list[tuple[int, str, int, int]] = field(default_factory=list)  # step, phase, start, end
    steps: dict[int, Span] = field(default_factory=dict)

    def lasting(self) -> list[tuple[int, str, int, int]]:
        """The phases, each until what was asked for in it is done, another begins or its step ends."""
        found = []
        for step, phase, a, b in self.phases:
            done = max((w.end for w in self.work if w.asked is not None and a <= w.asked < b), default=b)
            others = [start for _, _, start, _ in self.phases if start >= b]
            found.append((step, phase, a, max(b, min(done, *others, self.steps[step][1]))))
        return found

    def causes(self, device: int, window: Span) -> dict[str, int]:
        """Why one GPU was idle, one nanosecond at a time."""
        work = sorted((w for w in self.work if w.device == device), key=lambda w: w.start)
        phases = self.lasting()
        said = dict.fromkeys(("queued_ns", "synchronising_ns", "waiting_ns", "host_ns"), 0)
        for at in range(*window):
            if any(w.start <= at < w.end for w in work):
                continue
            then = next((w for w in work if w.start > at), None)
            if then is not None and then.returned is not None and then.returned <= at:
                said["queued_ns"] += 1
            elif phases and not any(a <= at < b for _, _, a, b in phases):
                said["waiting_ns"] += 1
            else:
                said["host_ns"] += 1
        return said


def sweep(work: Iterable[Done], window: Span) -> dict[str, int]:
    """How long each kind runs and hides the others in a window, one elementary interval at a time."""
    begin, end = window
    edges: dict[int, Counter[str]] = {begin: Counter(), end: Counter()}
    for w in work:
        a, b = max(w.start, begin), min(w.end, end)
        if b > a:
            edges.setdefault(a, Counter())[w.kind] += 1
            edges.setdefault(b, Counter())[w.kind] -= 1
    said = dict.fromkeys(
        ("compute_ns", "communication_ns", "exposed_communication_ns", "memcpy_ns", "exposed_memcpy_ns"), 0
    )
    said |= {"busy_ns": 0, "idle_ns": 0, "window_ns": end - begin}
    open_: Counter[str] = Counter()
    moments = sorted(edges)
    for at, until in pairwise(moments):
        open_.update(edges[at])
        length = until - at
        compute, talk, copy = open_[COMPUTE] > 0, open_[TALK] > 0, open_[COPY] > 0
        said["compute_ns"] += length * compute
        said["communication_ns"] += length * talk
        said["memcpy_ns"] += length * copy
        said["exposed_communication_ns"] += length * (talk and not compute)
        said["exposed_memcpy_ns"] += length * (copy and not talk and not compute)
        said["busy_ns"] += length * (compute or talk or copy)
        said["idle_ns"] += length * (not (compute or talk or copy))
    return said


def kind_of(name: str, copied: bool) -> str:
    low = name.lower()
    if copied or low.startswith(("memory_copy_", "__amd_rocclr_copybuffer")):
        return COPY
    return TALK if any(word in low for word in ("nccl", "rccl", "cross_device_reduce")) else COMPUTE


def check(summary: Summary, truth: Truth) -> None:
    """Equal to the nanosecond: every GPU, step and phase; every kernel's count and time by phase."""
    devices = sorted({w.device for w in truth.work})
    assert [d.device for d in summary.devices] == devices
    for device in summary.devices:
        mine = [w for w in truth.work if w.device == device.device]
        whole = min(w.start for w in mine), max(w.end for w in mine)
        assert structs.asdict(device.times) == sweep(mine, whole) and device.kernels == len(mine)
        assert sum(structs.astuple(device.idle)) == device.times.idle_ns
    for step in summary.steps:
        check_window([(step.start, step.end)], truth, devices, step.gpu, step.idle)
        if step.step in truth.steps:
            assert (step.start, step.end) == truth.steps[step.step]
    stretches: dict[tuple[int, str], list[Span]] = {}
    for number, phase, start, end in truth.lasting():
        stretches.setdefault((number, phase), []).append((start, end))
    if truth.steps:
        assert {(p.step, p.phase) for p in summary.phases} == set(stretches)
    for phase in summary.phases:
        inside = stretches.get((phase.step, phase.phase))
        if inside is None:  # of a real trace, whose phases the oracle does not find
            inside = list(zip(phase.when.start.tolist(), phase.when.end.tolist(), strict=True))
        assert phase.duration_ns == sum(b - a for a, b in inside)
        check_window(inside, truth, devices, phase.gpu, phase.idle)
    totals: dict[str, list[int]] = {}
    for w in truth.work:
        total = totals.setdefault(w.name, [0, 0])
        total[0] += 1
        total[1] += w.end - w.start
    found: dict[str, list[int]] = {}
    for k in summary.kernels:
        total = found.setdefault(k.name, [0, 0])
        total[0] += k.count
        total[1] += k.total_ns
    assert found == totals
    if truth.steps:
        by_phase: Counter[tuple[str, str]] = Counter()
        for w in truth.work:
            asked = w.start if w.asked is None else w.asked
            where = [phase for _, phase, a, b in truth.phases if a <= asked < b]
            by_phase[where[0] if where else "", w.name] += w.end - w.start
        assert {(k.phase, k.name): k.total_ns for k in summary.kernels} == by_phase


def check_window(windows: list[Span], truth: Truth, devices: list[int], gpu: Any, idle: Any) -> None:
    expected: Counter[str] = Counter()
    for device in devices:
        for window in windows:
            expected.update(sweep([w for w in truth.work if w.device == device], window))
    if not devices:
        assert gpu is None
        return
    assert structs.asdict(gpu) == {key: expected[key] for key in gpu.__struct_fields__}
    assert sum(structs.astuple(idle)) == gpu.idle_ns and min(structs.astuple(idle)) >= 0
    if truth.steps:
        causes: Counter[str] = Counter()
        for device in devices:
            for window in windows:
                causes.update(truth.causes(device, window))
        assert structs.asdict(idle) == {key: causes[key] for key in idle.__struct_fields__}


def summaries(path: Path) -> list[Summary]:
    report = ReportFile(path.name, "torch", "w", None, "", None, None, None, None, path.stat().st_size)
    found = [s for s in summarise_file(path.parent, report, cache=False) if isinstance(s, Summary)]
    assert found
    return found


# real traces


def nanoseconds(text: Any) -> int:
    return int((Decimal(text) * 1000).quantize(Decimal(1), ROUND_HALF_UP))


def torch_truth(path: Path) -> Truth:
    said = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    base = int(said.get("baseTimeNanoseconds") or 0)
    truth = Truth()
    for event in said["traceEvents"]:
        category = event.get("cat")
        if event.get("ph") != "X" or category not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        start, args = base + nanoseconds(event["ts"]), event.get("args") or {}
        kind = kind_of(event["name"], category == "gpu_memcpy") if category != "gpu_memset" else COMPUTE
        device = args.get("device", event.get("pid"))
        end = start + nanoseconds(event["dur"])
        truth.work.append(Done(event["name"], kind, start, end, int(device)))
    return truth


@pytest.mark.parametrize("name", TORCH_FILES)
def test_every_real_torch_trace(name: str) -> None:
    path = real(f"torch/{name}.json.gz")
    (summary,) = summaries(path)
    check(summary, torch_truth(path))


def test_the_real_export_of_two_processes() -> None:
    path = real("h100_2gpu_part.sqlite")
    c = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    ((utc, zero),) = c.execute("select utcEpochNs, systemClockNs from TARGET_INFO_SESSION_START_TIME")
    strings = dict(c.execute("select id, value from StringIds"))
    truths: dict[int, Truth] = {}
    copies = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "Peer"}
    for table, name in (("KERNEL", "demangledName"), ("MEMCPY", "copyKind"), ("MEMSET", "0")):
        query = f"select start, end, deviceId, globalPid, {name} from CUPTI_ACTIVITY_KIND_{table}"
        for start, end, device, pid, code in c.execute(query):
            label = strings[code] if table == "KERNEL" else f"Memcpy {copies[code]}" if code else "Memset"
            kind = COMPUTE if table == "MEMSET" else kind_of(label, table == "MEMCPY")
            done = Done(label, kind, start + utc - zero, end + utc - zero, device)
            truths.setdefault(pid >> 24 & 0xFFFFFF, Truth()).work.append(done)
    found = summaries(path)
    assert [s.pid for s in found] == sorted(truths) and len(found) == 2
    for summary in found:
        check(summary, truths[summary.pid])


# random ones

NAMES = ("gemm", "attention", "ncclDevKernel_AllReduce")
PHASES = ("generation", "train", "reward")


@st.composite
def a_process(draw: st.DrawFn, pid: int) -> tuple[Process, Truth]:
    """Steps with phases that do not overlap, ranges nested in them, and work anywhere."""
    truth, ranges, at = Truth(), [], draw(st.integers(0, 50))
    for number in range(3, 3 + draw(st.integers(1, 3))):
        begin = at
        for phase in draw(st.lists(st.sampled_from(PHASES), max_size=4)):
            start = at + draw(st.integers(0, 20))
            at = start + draw(st.integers(1, 60))
            truth.phases.append((number, phase, start, at))
            ranges.append((phase, start, at))
            if draw(st.booleans()) and at - start > 2:
                ranges.append(("inner", start + 1, at - 1))
        at += draw(st.integers(1, 20))
        truth.steps[number] = (begin, at)
        ranges.append((f"step {number}", begin, at))
        at += draw(st.integers(0, 10))
    work = []
    starts = draw(st.lists(st.integers(0, at + 40), unique=True, max_size=25))
    for i, start in enumerate(starts):
        name, device = draw(st.sampled_from(NAMES)), draw(st.integers(0, 1))
        asked = max(start - draw(st.integers(0, 40)), 0)
        end, took = start + draw(st.integers(1, 50)), draw(st.integers(1, 30))
        work.append(Work(name, asked, start, end, i + 1, device, took))
        truth.work.append(Done(name, kind_of(name, False), start, end, device, asked, asked + took))
    return Process(pid, tuple(ranges), tuple(work), draw(st.sampled_from(GPUS))), truth


GPUS = ({0: "GPU-a", 1: "GPU-b"}, {0: "GPU-b", 1: "GPU-a"}, {0: "GPU-b", 1: "GPU-c"})
UTC = 1_795_227_257_000_000_000


def at_utc(truth: Truth) -> Truth:
    for w in truth.work:
        w.start, w.end = w.start + UTC, w.end + UTC
        w.asked, w.returned = (None if at is None else at + UTC for at in (w.asked, w.returned))
    truth.phases = [(n, phase, a + UTC, b + UTC) for n, phase, a, b in truth.phases]
    truth.steps = {n: (a + UTC, b + UTC) for n, (a, b) in truth.steps.items()}
    return truth


@RANDOM
@given(st.data())
def test_random_exports_of_up_to_three_processes(data: st.DataObject) -> None:
    """Launch numbers begin at 1 in each; GPUs are shared and called by other numbers."""
    made = [data.draw(a_process(100 + i)) for i in range(data.draw(st.integers(1, 3)))]
    with tempfile.TemporaryDirectory() as folder:
        found = summaries(write_export(Path(folder, "r.sqlite"), *(p for p, _ in made), utc=UTC))
    truths = {process.pid: at_utc(truth) for process, truth in made}
    assert {s.pid for s in found} == set(truths)
    for summary in found:
        check(summary, truths[summary.pid])
    users: dict[str, dict[int, list[Done]]] = {}
    for process, truth in made:
        for w in truth.work:
            users.setdefault(process.gpus[w.device], {}).setdefault(process.pid, []).append(w)
    shared = {gpu.uuid: gpu for gpu in shared_gpu_rows(merge(found))}
    assert set(shared) == {uuid for uuid, by in users.items() if len(by) > 1}
    for uuid, gpu in shared.items():
        work = [w for by in users[uuid].values() for w in by]
        said = sweep(work, (min(w.start for w in work), max(w.end for w in work)))
        assert (gpu.window_ns, gpu.busy_ns, gpu.idle_ns, gpu.doubt_ns) == (
            said["window_ns"], said["busy_ns"], said["idle_ns"], 0,
        )  # fmt: skip


@RANDOM
@given(a_process(1))
def test_random_torch_traces(made: tuple[Process, Truth]) -> None:
    """The same processes as torch writes them, in microseconds with three decimals."""
    process, truth = made
    events: list[dict[str, Any]] = [x("cpu_op", "aten::op", 0, 0.001)]
    events += [mark(name, start / 1000, (end - start) / 1000) for name, start, end in process.ranges]
    for w in process.work:
        events.append(launch(w.asked / 1000, w.correlation, w.took / 1000))
        length = (w.end - w.start) / 1000
        events.append(kernel(w.name, w.start / 1000, length, 7, w.device, w.correlation))
    with tempfile.TemporaryDirectory() as folder:
        (summary,) = summaries(write_trace(Path(folder, "r.json"), events, None, UTC))
    check(summary, at_utc(truth))
