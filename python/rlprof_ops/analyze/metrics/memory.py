"""Peaks of allocator memory by device and phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlprof_ops.analyze.columns import Trace
from rlprof_ops.analyze.metrics.kernels import phase_codes
from rlprof_ops.analyze.metrics.phases import Segment


@dataclass(frozen=True)
class MemoryPeak:
    """The most that was allocated, and reserved from the device, during one phase ("" outside all); -1 is
    unknown.
    """

    device: int  # -1 is host memory
    phase: str
    allocated_bytes: int
    reserved_bytes: int


def memory_peaks(trace: Trace, segments: tuple[Segment, ...]) -> tuple[MemoryPeak, ...]:
    """Peaks by device and phase, from torch's `[memory]` events or nsys's CUDA memory usage."""
    samples = trace.memory
    if len(samples) == 0:
        return ()
    codes, phases = phase_codes(samples.time, segments)
    peaks = []
    for device in np.unique(samples.device).tolist():
        for code, phase in enumerate(phases):
            mine = (samples.device == device) & (codes == code)
            if mine.any():
                allocated, reserved = samples.allocated_bytes[mine].max(), samples.reserved_bytes[mine].max()
                peaks.append(MemoryPeak(int(device), phase, int(allocated), int(reserved)))
    return tuple(peaks)
