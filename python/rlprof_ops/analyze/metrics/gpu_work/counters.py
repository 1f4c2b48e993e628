"""The GPUs' own counters (SM active, tensor active, DRAM, NVLink, PCIe) by phase and by kind of kernel.

A sample holds for the time since the one before it, so a mean over a time is the integral of the samples over
it. Integrals are kept as running sums with their times: a few thousand points of them are exact where they
stand, and straight between.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from rlprof_ops.analyze.columns import KERNEL, Ints, Trace, distinct
from rlprof_ops.analyze.kernel_names import kernel_class
from rlprof_ops.analyze.readers.nsys_metrics import KEPT

MOST_POINTS = 4096  # of a GPU and metric that leave the process that reads a report
_LOST = 10  # usual distances of samples, beyond which nothing was sampled between two

Sums = npt.NDArray[np.float64]


class CounterSeries(Struct, frozen=True):
    """One metric of one GPU: the integral of its share from the first sample to each of `time` (ns), and how
    much of that time was sampled.
    """

    gpu: str
    metric: str
    time: Ints
    integral: Sums
    sampled: Sums

    def between(self, start: Ints, end: Ints) -> tuple[float, float]:
        """Integral of the share, and nanoseconds that were sampled, over stretches of time."""
        parts = []
        for sums in (self.integral, self.sampled):
            low, high = (np.interp(edge, self.time, sums) for edge in (start, end))
            parts.append(float((high - low).sum()))
        return parts[0], parts[1]


class ClassCounter(Struct, frozen=True):
    """One metric while kernels of one kind ran on one GPU; of kernels beside each other both count."""

    kernel_class: str
    metric: str
    integral: float
    sampled_ns: float


def counter_series(trace: Trace) -> tuple[CounterSeries, ...]:
    """Every GPU's metrics, in full."""
    samples = trace.metrics
    found = []
    for gpu in distinct(samples.gpu).tolist():
        for metric in distinct(samples.metric[samples.gpu == gpu]).tolist():
            mine = (samples.gpu == gpu) & (samples.metric == metric)
            found.append(
                _series(trace.origin.metered[gpu], KEPT[metric][0], samples.time[mine], samples.share[mine])
            )
    return tuple(series for series in found if series is not None)


def _series(gpu: str, metric: str, time: Ints, share: Sums) -> CounterSeries | None:
    if len(time) < 2:
        return None
    gone = np.diff(time).astype(np.float64)
    gone[gone > _LOST * float(np.median(gone))] = 0.0
    integral, sampled = (np.concatenate(([0.0], np.cumsum(part))) for part in (share[1:] * gone, gone))
    return CounterSeries(gpu, metric, time, integral, sampled)


def fewer(series: tuple[CounterSeries, ...]) -> tuple[CounterSeries, ...]:
    """The same with at most `MOST_POINTS` points each, the first and the last among them."""
    found = []
    for one in series:
        count = min(len(one.time), MOST_POINTS)
        kept = np.linspace(0, len(one.time) - 1, count).astype(np.int64)
        found.append(
            CounterSeries(one.gpu, one.metric, one.time[kept], one.integral[kept], one.sampled[kept])
        )
    return tuple(found)


def class_counters(trace: Trace, series: tuple[CounterSeries, ...]) -> tuple[ClassCounter, ...]:
    """What the counters said while kernels of each kind ran, on the GPUs that this process used."""
    device_of = {uuid: device for pid, device, uuid in trace.origin.gpus if pid == trace.origin.pid}
    kinds: dict[str, list[int]] = defaultdict(list)
    for code in distinct(trace.gpu.name).tolist() if series else ():
        kinds[kernel_class(trace.names[code])].append(code)
    found = []
    for one in series:
        if one.gpu not in device_of:
            continue
        here = (trace.gpu.device == device_of[one.gpu]) & (trace.gpu.kind == KERNEL)
        for kind, codes in kinds.items():
            rows = np.flatnonzero(here & np.isin(trace.gpu.name, codes))
            start = trace.gpu.start[rows]
            integral, sampled = one.between(start, start + trace.gpu.duration[rows])
            if sampled > 0:
                found.append(ClassCounter(kind, one.metric, integral, sampled))
    return tuple(found)
