"""Finds ranks that are slower than their peers for several steps on end."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

from rlprof_ops.recorder.detect.anomaly import SLOW_RANK, Anomaly
from rlprof_ops.recorder.detect.phase_words import SEASONAL, WAITING
from rlprof_ops.words import duration

STREAK = 3  # steps on end
_FACTOR = 1.2
_FEW, _FEW_FACTOR = 4, 1.35  # with fewer ranks nobody says which of them is the ordinary one
LEAST_FACTOR = 1.1  # of each of them
_SIGMAS = 3.0  # of one step; the mean of three has to be so far out
_LEAST_SIGMA = 0.02
LEAST_SHARE = 0.05  # of the step
_LEAST_STEPS = 8
_WINDOW = 20
_BURSTS = 0.01  # of a rank's steps at least, that chance makes slow
_CHANCE = 0.01  # that a job of `_JOB_STEPS` steps has a streak of bursts which counts
_JOB_STEPS = 300
_SKEW = 1.15  # the median of such means lies below their mean
_FIRST_DIFFERENCES = math.sqrt(math.pi) / 2  # a mean absolute difference to a deviation
STEP = ""  # the name of a step as a whole, where ranks tell no phase


def least_factor(ranks: int) -> float:
    """How many times its peers' time a slow rank takes on average, at least, among so many ranks."""
    return _FACTOR if ranks >= _FEW else _FEW_FACTOR


@dataclass
class _Series:
    """One phase of one role: each rank's score against its peers, and how it moves from step to step."""

    noise: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    before: dict[int, float] = field(default_factory=dict)
    streak: dict[int, list[float]] = field(default_factory=dict)
    steps: int = 0
    told: int = 0  # of all ranks
    bursts: int = 0  # of them: slow steps that no streak has come of

    def needs(self, ranks: int) -> int:
        """How many slow steps on end are no chance, as often as single ones come."""
        usual = max(self.bursts / max(self.told, 1), _BURSTS)
        return max(STREAK, math.ceil(math.log(_CHANCE / (_JOB_STEPS * ranks)) / math.log(min(usual, 0.5))))


class RankDetector:
    """All ranks of one role."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._series: dict[str, _Series] = {}
        self._named: set[int] = set()
        self._step = 0
        self.factors: dict[int, float] = {}  # of the latest step: the worst phase against its peers

    def add(
        self, step: int, seconds: Mapping[int, float], phases: Mapping[str, Mapping[int, float]], t_ns: int
    ) -> list[Anomaly]:
        """A step that all ranks have told: its seconds by rank, and those of each phase alone."""
        if len(seconds) < 2:
            return []
        if step < self._step:  # of a second trainer
            for series in self._series.values():
                series.streak.clear()
        self._step = step
        whole = median(seconds.values())
        found: list[Anomaly] = []
        self.factors = {}
        telling = {
            name: values
            for name, values in phases.items()
            if len(values) * 2 > len(seconds) and not WAITING.search(name) and not SEASONAL.search(name)
        }
        for name, values in telling.items() if telling else ((STEP, seconds),):
            found += self._add(step, name, values, whole, t_ns)
        return found

    def _add(
        self, step: int, name: str, values: Mapping[int, float], whole: float, t_ns: int
    ) -> list[Anomaly]:
        series = self._series.setdefault(name, _Series())
        series.steps += 1
        middle = median(values.values())
        if len(values) == 2:  # each one's peer is the other
            total = sum(values.values())
            peers = {rank: total - value for rank, value in values.items()}
        else:
            peers = dict.fromkeys(values, middle)
        scores = {rank: math.log(max(value, 1e-9) / max(peers[rank], 1e-9)) for rank, value in values.items()}
        moved = [abs(score - series.before[rank]) for rank, score in scores.items() if rank in series.before]
        series.before = scores
        if moved:
            series.noise.append(_FIRST_DIFFERENCES * fmean(moved))
        sigma = max(_SKEW * median(series.noise), _LEAST_SIGMA) if series.noise else 1.0
        least = math.log(least_factor(len(values)))
        found = []
        needs = series.needs(len(values))
        for rank, score in scores.items():
            lost = values[rank] - peers[rank]
            if lost > LEAST_SHARE * whole:
                self.factors[rank] = max(self.factors.get(rank, 0.0), math.exp(score))
            if score > math.log(LEAST_FACTOR) and lost > LEAST_SHARE * whole:
                streak = series.streak.setdefault(rank, [])
                streak.append(score)
                mean = fmean(streak[-needs:])
                slow = len(streak) >= needs and mean > max(_SIGMAS * sigma, least)
                if slow and series.steps >= _LEAST_STEPS and rank not in self._named:
                    self._named.add(rank)
                    found.append(self._finding(step, name, rank, values[rank], peers[rank], sigma, t_ns))
            else:
                ended = series.streak.pop(rank, ())
                if rank not in self._named:
                    series.told += 1 + len(ended)
                    series.bursts += sum(score > least for score in ended)
        return found

    def _finding(
        self, step: int, name: str, rank: int, seconds: float, peers: float, sigma: float, t_ns: int
    ) -> Anomaly:
        what = name or "its step"
        since = step - len(self._series[name].streak[rank]) + 1
        text = (
            f"{self._worker} rank {rank} is slow since step {since}: {what} takes {duration(seconds * 1e9)},"
            f" {seconds / max(peers, 1e-9):.2f} times its peers' {duration(peers * 1e9)}"
        )
        evidence = {"since_step": since, "seconds": seconds, "peers_s": peers, "sigma": sigma}
        key = f"{SLOW_RANK}:{self._worker}:{rank}"
        return Anomaly(SLOW_RANK, text, key, t_ns, step, self._worker, (rank,), "", name, evidence)
