"""Finds GPUs that are slowed down, and memory that grows towards its end."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from statistics import median

from rlprof_ops.recorder.detect.anomaly import MEMORY, THROTTLE, Anomaly
from rlprof_ops.recorder.samples.gpu import GpuSample, throttle_words
from rlprof_ops.words import counted, duration, size

# What NVIDIA's list of XIDs says of those that end a GPU's work, and are not the program's own fault.
_XIDS = {
    48: " (memory, an ECC error of two bits)",
    74: " (NVLink)",
    79: " (it has fallen off the bus)",
    94: " (memory, a contained ECC error)",
    95: " (memory, an ECC error that was not contained)",
    119: " (its GSP does not answer)",
}
_THROTTLED_S = 5.0  # of the latest half minute
_THROTTLE_WINDOW_S = 30.0
_GRAIN_S = 10.0
_MIB = 1 << 20
_MEMORY_WINDOW_S = 1200.0
_LEAST_WATCHED_S = 300.0
_LEAST_USED = 0.7
_FULL = 0.98
_SOON_S = 900.0


def gpu_faults(node: str, gpus: Iterable[GpuSample]) -> list[str]:
    """What may be wrong with the GPUs of a node where nothing else tells why they stand, worst first."""
    found = []
    for gpu in gpus:
        said = [f"has told XID {gpu.xid}{_XIDS.get(gpu.xid, '')}"] if gpu.xid else []
        said += [f"has counted {counted(gpu.ecc_errors, 'ECC error')}"] if gpu.ecc_errors else []
        said += [f"is throttled: {words}"] if (words := throttle_words(gpu.throttle)) else []
        said += [f"has counted {counted(gpu.nvlink_errors, 'NVLink error')}"] if gpu.nvlink_errors else []
        found += [(not gpu.xid, f"GPU {gpu.gpu} of node {node} {' and '.join(said)}")] if said else []
    return [text for _, text in sorted(found)]


class ThrottleDetector:
    """One GPU. A GPU is told once."""

    def __init__(self, node: str, gpu: int) -> None:
        self._node, self._gpu = node, gpu
        self._slow: deque[tuple[float, float]] = deque()
        self._told = False

    def add(self, t_s: float, seconds: float, bits: int) -> Anomaly | None:
        """For `seconds` until `t_s` the reasons in `bits` have slowed it."""
        words = throttle_words(bits)
        if words and seconds > 0:
            self._slow.append((t_s, seconds))
        while self._slow and self._slow[0][0] < t_s - _THROTTLE_WINDOW_S:
            self._slow.popleft()
        total = sum(part for _, part in self._slow)
        if self._told or not words or total < _THROTTLED_S:
            return None
        self._told = True
        return Anomaly(
            THROTTLE,
            f"GPU {self._gpu} of node {self._node} is throttled: {words}",
            f"{THROTTLE}:{self._node}:{self._gpu}",
            int(t_s * 1e9),
            node=self._node,
            evidence={"gpu": self._gpu, "reasons": words, "seconds": total},
        )


class MemoryDetector:
    """One memory: a node's, or a GPU's. Told once."""

    def __init__(self, node: str, what: str) -> None:
        self._node, self._what = node, what
        self._seen: deque[tuple[float, float]] = deque()
        self._told = False

    def add(self, t_s: float, used_mib: float, total_mib: float) -> Anomaly | None:
        if not self._seen or t_s - self._seen[-1][0] >= _GRAIN_S:
            self._seen.append((t_s, used_mib))
        while self._seen[0][0] < t_s - _MEMORY_WINDOW_S:
            self._seen.popleft()
        if self._told or not total_mib or used_mib < _LEAST_USED * total_mib:
            return None
        rate = self._rate_mib_s()
        left_s = (_FULL * total_mib - used_mib) / rate if rate > 0 else float("inf")
        if left_s > _SOON_S:
            return None
        self._told = True
        return Anomaly(
            MEMORY,
            f"{self._what} of node {self._node} grows by {size(rate * 60 * _MIB)} a minute and is full in"
            f" {duration(max(0.0, left_s) * 1e9)}: {size(used_mib * _MIB)} of"
            f" {size(total_mib * _MIB)} are used",
            f"{MEMORY}:{self._node}:{self._what}",
            int(t_s * 1e9),
            node=self._node,
            evidence={"used_mib": used_mib, "total_mib": total_mib, "mib_per_s": rate, "full_in_s": left_s},
        )

    def _rate_mib_s(self) -> float:
        """How fast it grows, 0 unless each quarter of the time lies clearly above the one before."""
        seen = list(self._seen)
        if seen[-1][0] - seen[0][0] < _LEAST_WATCHED_S or len(seen) < 8:
            return 0.0
        quarter = len(seen) // 4
        parts = [seen[i * quarter : (i + 1) * quarter] for i in range(3)] + [seen[3 * quarter :]]
        middles = [median(used for _, used in part) for part in parts]
        times = [median(t for t, _ in part) for part in parts]
        steps = [after - before for before, after in itertools.pairwise(middles)]
        if min(steps) <= 0.2 * max(steps):
            return 0.0
        return (middles[-1] - middles[0]) / (times[-1] - times[0])
