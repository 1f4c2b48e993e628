"""The tables of `report.json` about kernels, their launches and operators, over all ranks of a worker."""

from __future__ import annotations

from collections import defaultdict

from rlprof_ops.analyze.gpu_peaks import gpu_peak
from rlprof_ops.analyze.metrics.distribution import merged_distribution
from rlprof_ops.analyze.metrics.gpu_work.launching import LaunchTotal, NameDurations
from rlprof_ops.analyze.metrics.gpu_work.operator_work import OperatorTotal
from rlprof_ops.analyze.operator_flops import Work
from rlprof_ops.analyze.report_model import KernelDurationRow, LaunchQueueRow, LaunchRow, OperatorRow
from rlprof_ops.analyze.run.merge import Rank, rank_of
from rlprof_ops.analyze.run.process_summary import Summary
from rlprof_ops.analyze.short_names import shortened

MAX_ROWS = 200


def launch_rows(read: list[Summary]) -> list[LaunchRow]:
    """Calls that launched work by name and phase; those that took longest first."""
    found: dict[tuple[str, str, str], list[LaunchTotal]] = defaultdict(list)
    for summary in read:
        for total in summary.launches:
            found[summary.report.worker, total.phase, total.call].append(total)
    rows = []
    for (worker, phase, call), parts in found.items():
        calls = merged_distribution([part.calls for part in parts])
        rows.append(
            LaunchRow(
                worker=worker,
                phase=phase,
                call=shortened(call, 400),
                count=calls.count,
                pieces=sum(part.pieces for part in parts),
                shorter=sum(part.shorter for part in parts),
                calls=calls.row(),
                delays=merged_distribution([part.delays for part in parts]).row(),
                work=merged_distribution([part.work for part in parts]).row(),
            )
        )
    return sorted(rows, key=lambda row: -row.calls.total_ns)[:MAX_ROWS]


def launch_queue_rows(read: list[Summary], index: dict[Rank, int]) -> list[LaunchQueueRow]:
    """Each stream of each rank; the streams with most launches first."""
    rows = [
        LaunchQueueRow(
            rank=index[rank_of(summary)],
            report=summary.report.path,
            device=queue.device,
            stream=queue.stream,
            launches=queue.launches,
            window_ns=queue.window_ns,
            mean=round(queue.waiting_ns / max(queue.window_ns, 1), 4),
            longest=queue.longest,
            empty=round(queue.empty_ns / max(queue.window_ns, 1), 5),
            full=round(queue.full_ns / max(queue.window_ns, 1), 5),
        )
        for summary in read
        for queue in summary.queues
    ]
    return sorted(rows, key=lambda row: -row.launches)[:MAX_ROWS]


def kernel_duration_rows(read: list[Summary]) -> list[KernelDurationRow]:
    """The spread of each kernel's durations; those that take longest in all first."""
    found: dict[tuple[str, str, str], list[NameDurations]] = defaultdict(list)
    for summary in read:
        for row in summary.durations:
            found[summary.report.worker, row.phase, row.name].append(row)
    whole = {key: merged_distribution([part.durations for part in parts]) for key, parts in found.items()}
    ranked = sorted(whole.items(), key=lambda item: -item[1].total)[:MAX_ROWS]
    return [
        KernelDurationRow(
            worker=worker,
            phase=phase,
            name=shortened(name, 400),
            count=durations.count,
            durations=durations.row(),
        )
        for (worker, phase, name), durations in ranked
    ]


def operator_rows(read: list[Summary]) -> list[OperatorRow]:
    """Operators by phase and shapes; those whose work takes the GPUs longest first."""
    found: dict[tuple[str, str, str, str, Work], list[OperatorTotal]] = defaultdict(list)
    for summary in read:
        gpus = {device.name for device in summary.devices}
        gpu = gpus.pop() if len(gpus) == 1 else ""
        for row in summary.operators:
            found[summary.report.worker, gpu, row.phase, row.name, row.work].append(row)
    rows = [_operator_row(*key, parts) for key, parts in found.items()]
    return sorted(rows, key=lambda row: -row.total_ns)[:MAX_ROWS]


def _operator_row(
    worker: str, gpu: str, phase: str, name: str, work: Work, parts: list[OperatorTotal]
) -> OperatorRow:
    count, total_ns = sum(part.count for part in parts), sum(part.total_ns for part in parts)
    tflops = work.flops * count / total_ns / 1e3
    peak = gpu_peak(gpu) if work.dtype in ("BFloat16", "Half") else None
    fed = peak.tb_per_s * work.flops / work.size_bytes if peak and work.size_bytes else None
    return OperatorRow(
        worker=worker,
        phase=phase,
        name=name,
        inputs=work.inputs,
        dtype=work.dtype,
        count=count,
        total_ns=total_ns,
        flops=work.flops,
        size_bytes=work.size_bytes,
        tflops=round(tflops, 4),
        gb_per_s=round(work.size_bytes * count / total_ns, 2) if work.size_bytes else None,
        gpu=gpu,
        peak_tflops=peak.tflops if peak else None,
        share=round(tflops / peak.tflops, 5) if peak else None,
        bound=None if fed is None or peak is None else "memory" if fed < peak.tflops else "compute",
        roof_tflops=None if fed is None or peak is None else round(min(fed, peak.tflops), 2),
    )
