"""Times of ranges, also outside windows: what a trainer logs beside its loss."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from rlprof_ops import env_names
from rlprof_ops.words import truth


@dataclass(frozen=True)
class RangeTimes:
    """Of all ranges of one name: how many ended, their sum and their longest, in seconds."""

    count: int
    total_s: float
    max_s: float


def asked(env: Mapping[str, str] | None = None) -> bool:
    """Whether `RLPROF_METRICS` asks for times in this process."""
    value = (os.environ if env is None else env).get(env_names.METRICS, "")
    return truth(value) is True


class Metrics:
    """Adds up durations by name, from any thread, and where a generator that was left is collected."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # what allocates may collect garbage, and that may end a range
        self._times: dict[str, list[float]] = {}

    def add(self, name: str, duration_s: float) -> None:
        with self._lock:
            times = self._times.setdefault(name, [0, 0.0, 0.0])
            times[0] += 1
            times[1] += duration_s
            times[2] = max(times[2], duration_s)

    def read(self, reset: bool = False) -> dict[str, RangeTimes]:
        """The sums so far; with `reset` they start again from zero, as a trainer wants it once a step."""
        with self._lock:
            times = self._times.copy()
            if reset:
                self._times = {}
            found = {
                name: RangeTimes(int(count), total, longest)
                for name, (count, total, longest) in times.items()
            }
        return found
