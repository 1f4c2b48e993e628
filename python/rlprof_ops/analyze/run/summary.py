"""Reads one report and sums it up where the file is: all metrics of a process that need no other rank."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec.structs import replace

from rlprof_ops.analyze.columns import Spans, Trace, distinct, join
from rlprof_ops.analyze.metrics.call_paths import call_paths
from rlprof_ops.analyze.metrics.collective_events import find_collective_events
from rlprof_ops.analyze.metrics.gpu_time import host_of, sum_gpu, sum_idle
from rlprof_ops.analyze.metrics.gpu_work.copies import copy_totals
from rlprof_ops.analyze.metrics.gpu_work.counters import (
    class_counters,
    counter_series,
    fewer,
)
from rlprof_ops.analyze.metrics.gpu_work.launching import (
    kernel_durations,
    launch_totals,
    launched,
    queue_lengths,
)
from rlprof_ops.analyze.metrics.gpu_work.longest import longest_kernels
from rlprof_ops.analyze.metrics.gpu_work.operator_work import operator_totals
from rlprof_ops.analyze.metrics.gpu_work.pipeline import PipelineTime, pipeline_times
from rlprof_ops.analyze.metrics.gpu_work.serving import serving_totals
from rlprof_ops.analyze.metrics.host_waits import host_communication
from rlprof_ops.analyze.metrics.intervals import Union
from rlprof_ops.analyze.metrics.kernels import (
    collective_totals,
    memory_peaks,
    top_kernels,
    top_ops,
)
from rlprof_ops.analyze.metrics.phase_ends import until_done
from rlprof_ops.analyze.metrics.phases import (
    Segment,
    Step,
    drawn,
    find_phases,
    find_steps,
    phase_union,
    stretches,
)
from rlprof_ops.analyze.metrics.stalls import find_stalls
from rlprof_ops.analyze.metrics.windowed_work import GpuWindows, gpu_windows
from rlprof_ops.analyze.process_traces import by_process
from rlprof_ops.analyze.readers import UnreadableReport, read_report
from rlprof_ops.analyze.readers.spill import release
from rlprof_ops.analyze.report_model import GpuTimes, IdleSplit
from rlprof_ops.analyze.run import step_log
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.process_summary import DeviceTimes, PhaseTime, Result, StepTime, Summary, Unread
from rlprof_ops.analyze.run.shared_gpus import busy_of


def summarise_file(root: Path, report: ReportFile, cache: bool = True) -> tuple[Result, ...]:
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


def _read(root: Path, report: ReportFile, cache: bool) -> Trace:
    if report.backend != step_log.BACKEND:
        return read_report(root / report.path, cache=cache)
    steps = step_log.steps_of(root / report.path, report.start, report.stop)
    return step_log.trace_of(steps, report.host, report.pid or 0, report.rank or 0)


def summarise(trace: Trace, report: ReportFile, begun: float | None = None) -> Summary:
    """All metrics of one process's trace that need no other rank."""
    begun = time.perf_counter() if begun is None else begun
    report = report.completed(trace.origin)
    steps = find_steps(trace, report.start, report.stop, report.clock)
    segments = find_phases(trace, steps)
    talking, collective_events = host_communication(trace), find_collective_events(trace)
    ops, stalls = top_ops(trace, segments), find_stalls(trace, segments)
    paths = call_paths(trace, segments)
    trace = replace(
        trace, ops=join(Spans, [])
    )  # the unions come later, and ops are no longer needed: a lower peak
    kernels, copies = top_kernels(trace, segments), copy_totals(trace, segments)
    durations, calls = kernel_durations(trace, segments, kernels), launched(trace)
    launches, queues = launch_totals(trace, calls, segments), queue_lengths(trace, calls)
    operators = operator_totals(trace, calls, segments)
    del calls
    serving = serving_totals(trace, segments)
    counters = counter_series(trace)
    release(trace.launches, trace.gpu)
    memory = memory_peaks(trace, segments)
    segments = until_done(trace, segments, steps)  # what is launched belongs to the range that launched it
    in_phase = phase_union(segments) if segments else None
    windows = [(step.start, step.end) for step in steps] + [(s.start, s.end) for s in segments]
    gpus = _gpus(trace, in_phase, windows)
    step_times = tuple(_step_time(step, gpus, number) for number, step in enumerate(steps))
    pipeline = pipeline_times(trace, segments)
    return Summary(
        report=report,
        kind=trace.origin.kind,
        host=report.host,
        pid=report.pid if report.pid is not None and trace.origin.processes == 1 else trace.origin.pid,
        rank=report.rank or 0,
        on_utc=trace.origin.on_utc,
        events=trace.events,
        damaged=trace.damaged,
        truncated=trace.truncated,
        seconds=time.perf_counter() - begun,
        start=trace.origin.window_start,
        end=trace.origin.window_end,
        details=trace.origin.details,
        steps=step_times,
        phases=_phase_times(segments, gpus, talking, len(steps), pipeline),
        drawn=drawn(segments),
        devices=tuple(_device_times(trace, gpu) for gpu in gpus),
        kernels=kernels,
        ops=ops,
        copies=copies,
        stalls=stalls,
        serving=serving,
        pipeline=pipeline,
        longest=longest_kernels(trace, windows[: len(steps)]),
        launches=launches,
        queues=queues,
        durations=durations,
        operators=operators,
        paths=paths,
        counters=fewer(counters),
        class_counters=class_counters(trace, counters),
        collectives=collective_totals(trace),
        memory=memory,
        collective_events=collective_events,
        collectives_seen=len(talking) > 0 or any(gpu.times[0].communication_ns for gpu in gpus),
        world_rank=trace.origin.world_rank,
        world_size=trace.origin.world_size if trace.origin.kind == "torch" else -1,
        visible_gpus=len(trace.origin.devices) if trace.origin.kind == "torch" else 0,
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
    segments: tuple[Segment, ...],
    gpus: list[GpuWindows],
    talking: Union,
    first: int,
    pipeline: tuple[PipelineTime, ...],
) -> tuple[PhaseTime, ...]:
    """`first` is the number of the first segment's window."""
    between = {(step, part.phase): ns for part in pipeline for step, ns in part.waits.items()}
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
        sent = min(between.get((step, phase), 0) // max(len(gpus), 1), communication)
        rows.append(PhaseTime(step, phase, duration, len(parts), communication, gpu, idle, when, sent))
    return tuple(rows)
