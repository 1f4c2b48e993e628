"""What one report says, small enough to pass between processes: computed where the file is read, merged
elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlprof_ops.analyze.columns import Spans, Trace, distinct, join
from rlprof_ops.analyze.metrics.collective_events import CollectiveEvents, find_collective_events
from rlprof_ops.analyze.metrics.gpu import GpuTimes, IdleSplit, host_of, sum_gpu, sum_idle
from rlprof_ops.analyze.metrics.gpu_work.copies import CopyTotal, copy_totals
from rlprof_ops.analyze.metrics.gpu_work.counters import (
    ClassCounter,
    CounterSeries,
    class_counters,
    counter_series,
    fewer,
)
from rlprof_ops.analyze.metrics.gpu_work.longest import LongKernels, longest_kernels, no_kernels
from rlprof_ops.analyze.metrics.gpu_work.pipeline import PipelineTime, pipeline_times
from rlprof_ops.analyze.metrics.gpu_work.serving import ServingTotal, serving_totals
from rlprof_ops.analyze.metrics.host import host_communication
from rlprof_ops.analyze.metrics.intervals import Union
from rlprof_ops.analyze.metrics.kernels import (
    CollectiveTotal,
    NameTotal,
    collective_totals,
    top_kernels,
    top_ops,
)
from rlprof_ops.analyze.metrics.memory import MemoryPeak, memory_peaks
from rlprof_ops.analyze.metrics.phases import (
    Segment,
    Step,
    drawn,
    find_phases,
    find_steps,
    phase_union,
    stretches,
)
from rlprof_ops.analyze.metrics.windows import GpuWindows, gpu_windows
from rlprof_ops.analyze.processes import by_process
from rlprof_ops.analyze.readers import UnreadableReport, read_report
from rlprof_ops.analyze.readers.spill import release
from rlprof_ops.analyze.run import step_log
from rlprof_ops.analyze.run.identity import Report
from rlprof_ops.analyze.run.shared_gpus import busy_of


@dataclass(frozen=True)
class DeviceTimes:
    """One GPU over the whole capture, as one process used it. `busy`: when, where the GPU's UUID is known, so
    that processes that share it can be put together.
    """

    device: int
    name: str
    start: int
    end: int
    times: GpuTimes
    idle: IdleSplit
    kernels: int
    uuid: str = ""
    busy: Union | None = None


@dataclass(frozen=True)
class PhaseTime:
    """One phase of one step on one rank. `communication_ns`: of the duration, time in collectives that
    nothing hid. `when`: all of its stretches, however many.
    """

    step: int
    phase: str
    duration_ns: int
    stretches: int
    communication_ns: int
    gpu: GpuTimes | None
    idle: IdleSplit | None
    when: Union


@dataclass(frozen=True)
class StepTime:
    """One step on one rank, or a window of `count` steps that no mark tells apart (None: nobody knows how
    many); with several GPUs in the process the GPU's times are their sum.
    """

    step: int
    start: int
    end: int
    marked: bool
    gpu: GpuTimes | None
    idle: IdleSplit | None
    count: int | None = 1


@dataclass(frozen=True)
class Summary:
    """What one process did, as one report tells. `told_apart`: another process has the same worker and rank,
    so that it is named with its pid.
    """

    report: Report
    kind: str
    host: str
    pid: int
    rank: int
    on_utc: bool
    events: int
    damaged: int
    truncated: str
    seconds: float
    start: int
    end: int
    details: dict[str, str]
    steps: tuple[StepTime, ...]
    phases: tuple[PhaseTime, ...]
    drawn: tuple[Segment, ...]  # for pictures; sums are taken of `PhaseTime.when`
    devices: tuple[DeviceTimes, ...]
    kernels: tuple[NameTotal, ...]
    ops: tuple[NameTotal, ...]
    collectives: tuple[CollectiveTotal, ...]
    memory: tuple[MemoryPeak, ...]
    collective_events: tuple[CollectiveEvents, ...]
    collectives_seen: bool
    world_rank: int = -1  # as torch.distributed counts in the world of this process; -1: untold
    told_apart: bool = False
    copies: tuple[CopyTotal, ...] = ()
    serving: tuple[ServingTotal, ...] = ()
    pipeline: tuple[PipelineTime, ...] = ()
    counters: tuple[CounterSeries, ...] = ()  # of every GPU that the report sampled
    class_counters: tuple[ClassCounter, ...] = ()
    longest: LongKernels = field(default_factory=no_kernels)

    def as_step(self, number: int) -> Summary:
        """The same, its one step without a mark numbered so."""
        return replace(
            self,
            steps=tuple(replace(step, step=number) for step in self.steps),
            phases=tuple(replace(phase, step=number) for phase in self.phases),
            drawn=tuple(replace(segment, step=number) for segment in self.drawn),
        )


@dataclass(frozen=True)
class Unread:
    """A report that could not be read: one line in the answer, not its end."""

    report: Report
    reason: str
    seconds: float


Result = Summary | Unread


def summarise_file(root: Path, report: Report, cache: bool = True) -> tuple[Result, ...]:
    """Reads one report of a run folder and sums it up, each process in it apart; never raises for what is in
    the file.
    """
    begun = time.perf_counter()
    try:
        held = [_read(root, report, cache)]
    except UnreadableReport as error:
        return (Unread(report, error.reason, time.perf_counter() - begun),)
    except (
        MemoryError,
        ArithmeticError,
        LookupError,
        ValueError,
        TypeError,
    ) as error:  # a shape no reader foresaw
        reason = f"{type(error).__name__} while reading: {error}"[:300]
        return (Unread(report, reason, time.perf_counter() - begun),)
    # given away: what is used up may go while the rest is computed
    return tuple(summarise(trace, report, begun) for trace in by_process(held.pop()))


def _read(root: Path, report: Report, cache: bool) -> Trace:
    if report.backend != step_log.BACKEND:
        return read_report(root / report.path, cache=cache)
    steps = step_log.steps_of(root / report.path, report.start, report.stop)
    return step_log.trace_of(steps, report.host, report.pid or 0, report.rank or 0)


def summarise(trace: Trace, report: Report, begun: float | None = None) -> Summary:
    """All metrics of one process's trace that need no other rank."""
    begun = time.perf_counter() if begun is None else begun
    steps = find_steps(trace, report.start, report.stop, report.clock)
    segments = find_phases(trace, steps)
    talking, collective_events = host_communication(trace), find_collective_events(trace)
    ops = top_ops(trace, segments)
    trace = replace(
        trace, ops=join(Spans, [])
    )  # the unions come later, and ops are no longer needed: a lower peak
    kernels, copies = top_kernels(trace, segments), copy_totals(trace, segments)
    serving = serving_totals(trace, segments)
    counters = counter_series(trace)
    release(trace.launches, trace.gpu)
    in_phase = phase_union(segments) if segments else None
    windows = [(step.start, step.end) for step in steps] + [(s.start, s.end) for s in segments]
    gpus = _gpus(trace, in_phase, windows)
    step_times = tuple(_step_time(step, gpus, number) for number, step in enumerate(steps))
    return Summary(
        report=report,
        kind=trace.origin.kind,
        host=report.host or trace.origin.host,
        pid=report.pid if report.pid is not None and trace.origin.processes == 1 else trace.origin.pid,
        rank=report.rank if report.rank is not None else max(trace.origin.rank, 0),
        on_utc=trace.origin.on_utc,
        events=trace.events,
        damaged=trace.damaged,
        truncated=trace.truncated,
        seconds=time.perf_counter() - begun,
        start=trace.origin.window_start,
        end=trace.origin.window_end,
        details=trace.origin.details,
        steps=step_times,
        phases=_phase_times(segments, gpus, talking, len(steps)),
        drawn=drawn(segments),
        devices=tuple(_device_times(trace, gpu) for gpu in gpus),
        kernels=kernels,
        ops=ops,
        copies=copies,
        serving=serving,
        pipeline=pipeline_times(trace, segments),
        longest=longest_kernels(trace, windows[: len(steps)]),
        counters=fewer(counters),
        class_counters=class_counters(trace, counters),
        collectives=collective_totals(trace),
        memory=memory_peaks(trace, segments),
        collective_events=collective_events,
        collectives_seen=len(talking) > 0 or any(gpu.times[0].communication_ns for gpu in gpus),
        world_rank=trace.origin.rank if trace.origin.kind == "torch" else -1,
    )


def _gpus(trace: Trace, in_phase: Union | None, windows: list[tuple[int, int]]) -> list[GpuWindows]:
    if len(trace.gpu) == 0:
        return []
    devices = distinct(trace.gpu.device).tolist()
    host = host_of(trace, in_phase)
    return [gpu_windows(trace, int(device), host, windows) for device in devices]


def _device_times(trace: Trace, gpu: GpuWindows) -> DeviceTimes:
    names, device = trace.origin.devices, gpu.device
    seen = {(pid, number): uuid for pid, number, uuid in trace.origin.gpus}
    uuid = seen.get((trace.origin.pid, device), "")
    return DeviceTimes(
        device=device,
        name=names[device] if 0 <= device < len(names) else names[0] if len(set(names)) == 1 else "",
        start=gpu.start,
        end=gpu.end,
        times=gpu.times[0],
        idle=gpu.idle[0],
        kernels=gpu.kernels,
        uuid=uuid,
        busy=busy_of(trace, device) if uuid else None,
    )


def _in_window(gpus: list[GpuWindows], number: int) -> tuple[GpuTimes | None, IdleSplit | None]:
    """All GPUs in the window of that number; the first of a GPU's is its whole time."""
    return sum_gpu([gpu.times[1 + number] for gpu in gpus]), sum_idle([gpu.idle[1 + number] for gpu in gpus])


def _step_time(step: Step, gpus: list[GpuWindows], number: int) -> StepTime:
    gpu, idle = _in_window(gpus, number)
    return StepTime(step.step, step.start, step.end, step.marked, gpu, idle, step.count)


def _phase_times(
    segments: tuple[Segment, ...], gpus: list[GpuWindows], talking: Union, first: int
) -> tuple[PhaseTime, ...]:
    """`first` is the number of the first segment's window."""
    grouped: dict[tuple[int, str], list[int]] = {}
    for number, segment in enumerate(segments):
        grouped.setdefault((segment.step, segment.phase), []).append(number)
    rows = []
    for (step, phase), numbers in grouped.items():
        inside = [_in_window(gpus, first + number) for number in numbers]
        parts = [segments[number] for number in numbers]
        gpu = sum_gpu([g for g, _ in inside if g is not None])
        idle = sum_idle([i for _, i in inside if i is not None])
        on_host = sum(talking.inside(part.start, part.end) for part in parts)
        on_gpu = gpu.exposed_communication_ns // max(len(gpus), 1) if gpu else 0
        duration = sum(part.end - part.start for part in parts)
        communication = on_gpu if gpu and gpu.communication_ns else on_host
        when = stretches(parts)[phase]
        rows.append(PhaseTime(step, phase, duration, len(parts), communication, gpu, idle, when))
    return tuple(rows)
