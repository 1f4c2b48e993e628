"""The GPUs' own counters by phase, whichever rank's report sampled them, and by kind of kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from rlprof_ops.analyze.metrics.gpu_work.counters import CounterSeries
from rlprof_ops.analyze.metrics.intervals import Union, union
from rlprof_ops.analyze.readers.nsys_metrics import KEPT
from rlprof_ops.analyze.report_model import CounterRow
from rlprof_ops.analyze.run.merge import Merged, RankStep, rank_of
from rlprof_ops.analyze.run.shared_gpus import plain

MAX_ROWS = 600
_ORDER = [name for name, _ in KEPT]
_Key = tuple[str, str, str, str]  # worker, phase, kernel class, metric


def counter_rows(merged: Merged) -> list[CounterRow]:
    """One session a node samples all of its GPUs, so a rank's phases are looked up in the samples of its GPU,
    by UUID, from whichever report of its host has them. GPUs that ranks share count for each.
    """
    series = _by_gpu(merged)
    sums: dict[_Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    gpus: dict[_Key, set[str]] = defaultdict(set)

    def add(key: _Key, gpu: str, integral: float, sampled: float) -> None:
        if sampled > 0:
            sums[key][0] += integral
            sums[key][1] += sampled
            gpus[key].add(gpu)

    for row in merged.steps if series else ():
        for gpu in row.gpus.uuids:
            for one in series.get((row.rank.host, gpu), ()):
                for phase, when in _stretches(row):
                    key = (row.rank.worker, phase, "", one.metric)
                    add(key, gpu, *one.between(when.start, when.end))
    for summary in merged.summaries:
        for told in summary.class_counters:
            key = (rank_of(summary).worker, "", told.kernel_class, told.metric)
            add(key, f"{summary.host} {summary.rank}", told.integral, told.sampled_ns)
    rows: list[CounterRow] = [
        CounterRow(
            worker=worker,
            phase=phase,
            kernel_class=kind,
            metric=metric,
            share=round(integral / sampled, 5),
            gpus=len(gpus[worker, phase, kind, metric]),
            sampled_ns=round(sampled),
        )
        for (worker, phase, kind, metric), (integral, sampled) in sums.items()
    ]
    rows.sort(key=lambda row: (row.worker, row.kernel_class, row.phase, _ORDER.index(row.metric)))
    return rows[:MAX_ROWS]


def _by_gpu(merged: Merged) -> dict[tuple[str, str], Sequence[CounterSeries]]:
    """(host, UUID) -> its series on the run's clock."""
    found: dict[tuple[str, str], dict[str, CounterSeries]] = defaultdict(dict)
    for summary in merged.summaries:
        clock = merged.clocks.of(summary.host)
        for one in summary.counters:
            known = found[summary.host, plain(one.gpu)]
            moved = replace(one, time=clock.all_aligned(one.time))
            known[one.metric] = _joined(known[one.metric], moved) if one.metric in known else moved
    return {gpu: tuple(metrics.values()) for gpu, metrics in found.items()}


def _joined(one: CounterSeries, other: CounterSeries) -> CounterSeries:
    """Two reports of one GPU: windows one after the other are one series; of two of the same time the longer
    counts.
    """
    first, last = (one, other) if one.time[0] <= other.time[0] else (other, one)
    if last.time[0] <= first.time[-1]:
        return one if len(one.time) >= len(other.time) else other
    return replace(
        first,
        time=np.concatenate((first.time, last.time)),
        integral=np.concatenate((first.integral, first.integral[-1] + last.integral)),
        sampled=np.concatenate((first.sampled, first.sampled[-1] + last.sampled)),
    )


def _stretches(row: RankStep) -> list[tuple[str, Union]]:
    whole = union(np.array([row.start], np.int64), np.array([row.end], np.int64))
    return [("", whole), *((phase.phase, phase.when) for phase in row.phases)]
