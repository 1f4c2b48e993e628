"""The tables of `report.json` below the level of a step: GPUs, kernels, operators, collectives, memory."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import structs

from rlprof_ops.analyze.kernel_names import kernel_class
from rlprof_ops.analyze.metrics.gpu_work.pipeline import UNTOLD, PipelineTime
from rlprof_ops.analyze.metrics.gpu_work.serving import ServingTotal
from rlprof_ops.analyze.metrics.intervals import Union
from rlprof_ops.analyze.metrics.intervals import merged as joined
from rlprof_ops.analyze.metrics.kernels import NameTotal
from rlprof_ops.analyze.report_model import (
    CopyRow,
    GpuRow,
    KernelClassRow,
    KernelSpans,
    MemoryRow,
    NameRow,
    PipelineRow,
    ServingRow,
    SharedGpuRow,
    WeightSyncRow,
)
from rlprof_ops.analyze.run.merge import Merged, Rank, rank_of
from rlprof_ops.analyze.run.process_summary import DeviceTimes, Summary
from rlprof_ops.analyze.run.shared_gpus import plain
from rlprof_ops.analyze.short_names import shortened

MAX_KERNELS = 300
MAX_COLLECTIVES = 200
MAX_SPANS = 24_000  # kernels that the chart can be zoomed to: 0.7 MB of the page
MIN_SPANS = 16  # of a report, however many there are


def gpu_rows(read: list[Summary], index: dict[Rank, int], t0: int) -> list[GpuRow]:
    return [
        GpuRow(
            rank=index[rank_of(s)],
            report=s.report.path,
            device=d.device,
            uuid=d.uuid,
            name=d.name,
            start_ns=d.start - t0,
            kernels=d.kernels,
            **structs.asdict(d.times),
            idle=d.idle,
        )
        for s in read
        for d in s.devices
    ]


def shared_gpu_rows(merged: Merged) -> list[SharedGpuRow]:
    """Every GPU that at least two processes used, by its UUID, over the captures of all of them; busy + idle
    is the window. `doubt_ns`: a process with more than `MAX_INTERVALS` stretches of work has the shortest
    gaps between them closed.
    """
    users: dict[str, list[tuple[Rank, DeviceTimes]]] = defaultdict(list)
    for summary in merged.summaries:
        for device in summary.devices:
            if device.uuid and device.busy is not None:
                users[plain(device.uuid)].append((rank_of(summary), device))
    found = []
    for _, uses in sorted(users.items()):
        ranks = sorted({rank for rank, _ in uses})
        if len(ranks) < 2:
            continue
        start, end = min(d.start for _, d in uses), max(d.end for _, d in uses)
        together = joined(*(d.busy for _, d in uses if d.busy is not None)).length
        doubt = sum(d.busy.length - d.times.busy_ns for _, d in uses if d.busy is not None)
        busy = max(together - doubt, max(d.times.busy_ns for _, d in uses))
        row = SharedGpuRow(
            uuid=uses[0][1].uuid,
            name=next((d.name for _, d in uses if d.name), ""),
            host=ranks[0].host,
            ranks=[merged.index[rank] for rank in ranks],
            start_ns=start - merged.t0,
            window_ns=end - start,
            busy_ns=busy,
            idle_ns=end - start - busy,
            doubt_ns=doubt,
        )
        found.append(row)
    return found


def step_times(merged: Merged) -> dict[str, int]:
    """worker -> the time of all of its ranks' steps."""
    times: dict[str, int] = defaultdict(int)
    for row in merged.steps:
        times[row.rank.worker] += row.duration_ns
    return times


def name_rows(read: list[Summary], what: str, whole: dict[str, int]) -> list[NameRow]:
    """Kernels or operators over all ranks of a worker, by phase; the longest first. Shares are of `whole`, or
    else of the sum, which would count operators inside of others twice.
    """
    totals: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    sums: dict[str, int] = defaultdict(int)
    for summary in read:
        rows: tuple[NameTotal, ...] = getattr(summary, what)
        for row in rows:
            total = totals[summary.report.worker, row.phase, row.name]
            total[0] += row.count
            total[1] += row.total_ns
            total[2] = max(total[2], row.max_ns)
            sums[summary.report.worker] += row.total_ns
    ranked = sorted(totals.items(), key=lambda item: -item[1][1])[:MAX_KERNELS]
    return [
        NameRow(
            worker=worker,
            phase=phase,
            name=shortened(name, 400),
            count=count,
            total_ns=total,
            max_ns=longest,
            share=round(total / max(whole.get(worker, 0) or sums[worker], 1), 5),
        )
        for (worker, phase, name), (count, total, longest) in ranked
    ]


def kernel_class_rows(read: list[Summary]) -> list[KernelClassRow]:
    """Kernels by what kind of work they are, over all ranks of a worker; copies are no kernels."""
    totals: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    whole: dict[tuple[str, str], int] = defaultdict(int)
    classes: dict[str, str] = {}
    for summary in read:
        for row in summary.kernels:
            if row.name not in classes:
                classes[row.name] = kernel_class(row.name)
            total = totals[summary.report.worker, row.phase, classes[row.name]]
            total[0] += row.count
            total[1] += row.total_ns
            whole[summary.report.worker, row.phase] += row.total_ns
    rows: list[KernelClassRow] = [
        KernelClassRow(
            worker=worker,
            phase=phase,
            kernel_class=name,
            count=count,
            total_ns=total,
            share=round(total / max(whole[worker, phase], 1), 5),
        )
        for (worker, phase, name), (count, total) in sorted(totals.items(), key=lambda item: -item[1][1])
    ]
    return rows[:MAX_KERNELS]


def copy_rows(read: list[Summary]) -> list[CopyRow]:
    """Copies by direction over all ranks of a worker."""
    totals: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for summary in read:
        for copy in summary.copies:
            total = totals[summary.report.worker, copy.phase, copy.direction]
            for i, value in enumerate((copy.count, copy.total_ns, copy.known_bytes, copy.known_ns)):
                total[i] += value
    rows: list[CopyRow] = [
        CopyRow(
            worker=worker,
            phase=phase,
            direction=direction,
            count=count,
            total_ns=total,
            size_bytes=size or None,
            gb_per_s=round(size / known, 3) if size and known else None,
        )
        for (worker, phase, direction), (count, total, size, known) in sorted(
            totals.items(), key=lambda item: -item[1][1]
        )
    ]
    return rows[:MAX_COLLECTIVES]


def kernel_spans(merged: Merged, index: dict[Rank, int], t0: int) -> KernelSpans:
    """The longest of every report, as many as fit into `MAX_SPANS` of all."""
    with_work = [summary for summary in merged.summaries if len(summary.longest)]
    most = max(MIN_SPANS, MAX_SPANS // max(len(with_work), 1))
    names: dict[str, int] = {}
    spans: list[list[int]] = []
    for summary in with_work:
        clock, rank = merged.clocks.of(summary.host), index[rank_of(summary)]
        found = summary.longest
        codes = [names.setdefault(shortened(name, 160), len(names)) for name in found.names]
        chosen = np.sort(np.argsort(-found.duration, kind="stable")[:most])
        starts = (clock.all_aligned(found.start[chosen]) - t0).tolist()
        rows = zip(found.name[chosen].tolist(), starts, found.duration[chosen].tolist(), strict=True)
        spans += [[rank, codes[name], start, duration] for name, start, duration in rows]
    return KernelSpans(most, list(names), spans)


def serving_rows(read: list[Summary]) -> list[ServingRow]:
    """Prefill and decode over all ranks of a worker; `share` is of all GPU work launched in that phase."""
    found: dict[tuple[str, str, str, str], list[ServingTotal]] = defaultdict(list)
    whole: dict[tuple[str, str], int] = defaultdict(int)
    for summary in read:
        for row in summary.serving:
            found[summary.report.worker, row.phase, row.kind, row.told_by].append(row)
        for kernel in summary.kernels if summary.serving else ():
            whole[summary.report.worker, kernel.phase] += kernel.total_ns
    rows: list[ServingRow] = []
    for (worker, phase, kind, told_by), parts in found.items():
        count, total = sum(part.count for part in parts), sum(part.total_ns for part in parts)
        curves = [part.batch for part in parts if part.batch]
        decoding = sum(part.decoding for part in parts)
        rows.append(
            ServingRow(
                worker=worker,
                phase=phase,
                kind=kind,
                told_by=told_by,
                count=count,
                total_ns=total,
                share=round(min(1.0, total / max(whole[worker, phase], 1)), 5),
                prompt_tokens=sum(part.prefilled for part in parts),
                batch_mean=round(decoding / max(count, 1), 2) if decoding else None,
                batch=[round(sum(points) / len(curves), 2) for points in zip(*curves, strict=True)],
            )
        )
    return sorted(rows, key=lambda row: -row.total_ns)[:MAX_COLLECTIVES]


def pipeline_rows(read: list[Summary]) -> list[PipelineRow]:
    """The stages of pipelines over all ranks of a worker, in their order."""
    found: dict[tuple[str, str, int], list[PipelineTime]] = defaultdict(list)
    ranks: dict[tuple[str, str, int], set[Rank]] = defaultdict(set)
    for summary in read:
        for part in summary.pipeline:
            key = (summary.report.worker, part.phase, part.stage)
            found[key].append(part)
            ranks[key].add(rank_of(summary))
    rows: list[PipelineRow] = []
    for key, parts in sorted(found.items()):
        worker, phase, stage = key
        steps = sum(part.steps for part in parts)
        window, compute, waiting, idle = (
            sum(getattr(part, name) for part in parts)
            for name in ("window_ns", "compute_ns", "waiting_ns", "idle_ns")
        )
        rows.append(
            PipelineRow(
                worker=worker,
                phase=phase,
                stage=None if stage == UNTOLD else stage,
                stages=max(part.stages for part in parts),
                ranks=len(ranks[key]),
                window_ns=window // steps,
                compute_ns=compute // steps,
                waiting_ns=waiting // steps,
                idle_ns=idle // steps,
                share=round((waiting + idle) / max(window, 1), 5),
            )
        )
    return rows[:MAX_COLLECTIVES]


def weight_sync_rows(merged: Merged) -> list[WeightSyncRow]:
    """Each step's weight sync: from the first rank's begin to the last one's end, and what each worker
    spent in it.
    """
    rows: list[WeightSyncRow] = []
    steps: dict[int, dict[str, list[Union]]] = defaultdict(lambda: defaultdict(list))
    for row in merged.steps:
        for part in row.phases:
            if part.phase == "weight_sync" and row.count == 1 and not row.rank.is_controller:
                steps[row.step][row.rank.worker].append(part.when)
    for number, parts in sorted(steps.items()):
        by_worker = {worker: joined(*unions) for worker, unions in parts.items()}
        every = joined(*by_worker.values())
        start, end, busy = int(every.start[0]), int(every.end[-1]), every.length
        spans = {worker: int(when.end[-1] - when.start[0]) for worker, when in by_worker.items()}
        rows.append(WeightSyncRow(number, end - start, spans, end - start - busy))
    return rows


def memory_rows(read: list[Summary], index: dict[Rank, int]) -> list[MemoryRow]:
    return [MemoryRow(**structs.asdict(m), rank=index[rank_of(s)]) for s in read for m in s.memory]
