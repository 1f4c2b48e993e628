"""The tables of `report.json` about single kernels and their launches, over all ranks of a worker."""

from __future__ import annotations

from collections import defaultdict

from rlprof_ops.analyze.metrics.distribution import merged_distribution
from rlprof_ops.analyze.metrics.gpu_work.launching import LaunchTotal, NameDurations
from rlprof_ops.analyze.report_model import KernelDurationRow, LaunchQueueRow, LaunchRow
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
