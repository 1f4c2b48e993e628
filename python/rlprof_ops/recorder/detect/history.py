"""What is ordinary for a series of durations: a sliding window, judged robustly, in logarithms.

The median and the median absolute deviation of logarithms: a duration is far out when it is many deviations
and also clearly more than the median. Durations of training steps are skewed, which logarithms take away.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

WINDOW = 64
LEAST = 12  # durations before anything is judged
SIGMAS = 7.0
LEAST_FACTOR = 1.3
_LEAST_SIGMA = 0.03
_MAD = 1.4826


@dataclass(frozen=True)
class Judged:
    """A duration against its history: `factor` is to the median, `sigmas` robust deviations above it."""

    seconds: float
    median_s: float
    factor: float
    sigmas: float

    @property
    def is_out(self) -> bool:
        return self.sigmas > SIGMAS and self.factor > LEAST_FACTOR


class History:
    """The latest durations of one kind of step or phase."""

    def __init__(self, window: int = WINDOW) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._window = window

    def __len__(self) -> int:
        return len(self._order)

    @property
    def median_s(self) -> float:
        return math.exp(_median(self._sorted)) if self._sorted else 0.0

    def judge(self, seconds: float) -> Judged | None:
        """None while there is too little to judge by."""
        if len(self._order) < LEAST or seconds <= 0:
            return None
        middle = _median(self._sorted)
        sigma = max(deviation(self._sorted, middle), _LEAST_SIGMA)
        away = math.log(seconds) - middle
        return Judged(seconds, math.exp(middle), math.exp(away), away / sigma)

    def add(self, seconds: float) -> None:
        value = math.log(max(seconds, 1e-9))
        self._order.append(value)
        insort(self._sorted, value)
        if len(self._order) > self._window:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]


def deviation(values: Iterable[float], middle: float) -> float:
    """How far from `middle` they lie, robustly: the standard deviation of a normal distribution."""
    return _MAD * median(abs(value - middle) for value in values)


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2
