"""The statistics of two runs: what chance alone makes of the difference of their mean steps, where
neighbouring steps are alike.

Answers grow, nodes warm up, a neighbour comes and goes: twenty such steps tell as little as three or seven
that have nothing to do with each other. How much they have to do with each other is itself known from those
few steps alone, and is doubtful. So every correlation that is possible is weighed by how well it explains the
steps of both runs (an autoregression of the first order, its mean and spread integrated out; without and with
a part of the noise that each step has for itself, which hides how far the rest reaches), and the chance is
the mean over all of them. What the other phases' steps are like is weighed in, as far as phases turn out
to be alike and do not just repeat each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import floor, log2

import numpy as np

from rlprof_ops.analyze.causes.significance import CORRELATIONS, Floats, chance_above, inflation, quantile

Steps = Mapping[int, float]  # step -> its time
FOUND = 0.9  # the chance of being found that a number of steps is named for
MOST_STEPS = 10_000
_MOST_BATCHES = 48  # longer runs are judged by the means of stretches, which know of slower changes too
_HALVINGS = 30
_MANY = 10  # degrees of freedom
_NOTHING = 1e-12  # of a mean: a spread that is none
_OWN = np.array([0.0, 0.25])  # the part of the noise, by variance, that each step has for itself
_OWN_BEFORE = np.array([0.7, 0.3])  # how likely each is beforehand
# What is weighed, one number each: every correlation without such a part, then every one with it.
_ALIKE, _ALONE = np.tile(CORRELATIONS, len(_OWN)), np.repeat(_OWN, len(CORRELATIONS))


@dataclass(frozen=True)
class Difference:
    """`noise`: what chance makes of the mean steps of two equal runs."""

    noise: float
    _errors: Floats  # standard error of the difference, by what is weighed
    _weights: Floats
    _spreads: tuple[float, float]  # standard deviation of a step in either run
    _steps: int  # of the shorter run
    _stretch: float  # steps that one of its samples is the mean of
    _freedom: float
    _level: float

    def power(self, change: float) -> float:
        """The chance that a change of the mean step by `change` would exceed the noise."""
        if self.noise == 0:
            return 1.0
        above = chance_above((self.noise - abs(change)) / self._errors, self._freedom)
        return float(self._weights @ above)

    def more_steps(self, change: float) -> int | None:
        """How many steps each run needs beyond the shorter one's so that nine of ten such changes are found;
        None: more than `MOST_STEPS`.
        """
        low, high = self._steps, MOST_STEPS
        if self._power_of(high, change) < FOUND:
            return None
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._power_of(middle, change) >= FOUND else (middle, high)
        return high - self._steps

    def _power_of(self, steps: int, change: float) -> float:
        """The power with so many steps a run, if they are like those that were seen."""
        samples = steps / self._stretch
        inflated = float(self._weights @ ((1 - _ALONE) * np.tile(inflation(samples), len(_OWN)) + _ALONE))
        error = float(np.hypot(*self._spreads)) * (inflated / samples) ** 0.5
        # a power of two, so that a search makes few tables
        freedom = 2.0 ** floor(log2(max(2 * (samples / inflated - 1), 1.0)))
        noise = quantile(1 - self._level / 2, freedom) * error
        return float(chance_above(np.array([(noise - abs(change)) / max(error, 1e-300)]), freedom)[0])


def differences(pairs: Sequence[tuple[Steps, Steps]], levels: Sequence[float]) -> list[Difference]:
    """What chance makes of each pair, at its own level (two-sided); two steps a run at least."""
    if not pairs:
        return []
    runs = [tuple(_Run.of(steps) for steps in pair) for pair in pairs]
    explained = np.array([sum(run.likelihood for run in pair) for pair in runs])
    weights = _weighed(np.exp(explained - explained.max(axis=1, keepdims=True)), _repeats(pairs))
    return [
        _difference(one, two, weight, level)
        for (one, two), weight, level in zip(runs, weights, levels, strict=True)
    ]


@dataclass(frozen=True)
class _Run:
    """One run's steps. By what is weighed: `likelihood` (the log of it), `variance` of a step, `of_mean` of
    their mean.
    """

    mean: float
    count: int
    steps: int
    likelihood: Floats
    variance: Floats
    of_mean: Floats

    @classmethod
    def of(cls, steps: Steps) -> _Run:
        numbers, values = _batches(steps)
        inverse, log_size, of_mean = _autoregressions(numbers)
        sums = inverse.sum(axis=1)
        apart = values - (sums @ values / sums.sum(axis=1))[:, None]
        squares = np.einsum("ri,rij,rj->r", apart, inverse, apart)
        squares = np.maximum(squares, (_NOTHING * abs(values.mean())) ** 2 + 1e-300)
        freedom = len(values) - 1
        likelihood = -(log_size + np.log(sums.sum(axis=1)) + freedom * np.log(squares)) / 2
        variance = squares / freedom
        return cls(float(values.mean()), len(values), len(steps), likelihood, variance, variance * of_mean)


def _batches(steps: Steps) -> tuple[tuple[float, ...], Floats]:
    """The mean number and the mean time of each stretch; of few steps, the steps."""
    ordered = np.array(sorted(steps.items()))
    parts = np.array_split(ordered, min(len(ordered), _MOST_BATCHES))
    apart = len(ordered) / len(parts)
    means = np.array([part.mean(axis=0) for part in parts])
    return tuple((means[:, 0] / apart).tolist()), means[:, 1]


@lru_cache(maxsize=16)
def _autoregressions(numbers: tuple[float, ...]) -> tuple[Floats, Floats, Floats]:
    """By what is weighed: the inverse of the matrix of correlations of steps so numbered, the log of its
    determinant, and the variance of their mean, that of a step being 1.
    """
    at, alone = np.array(numbers), _ALONE[:, None, None]
    alike = _ALIKE[:, None, None] ** np.abs(at[:, None] - at[None, :])
    alike = (1 - alone) * alike + alone * np.eye(len(at))
    return np.linalg.inv(alike), np.linalg.slogdet(alike)[1], alike.mean(axis=(1, 2))


def _repeats(pairs: Sequence[tuple[Steps, Steps]]) -> float:
    """The share of the pairs that say something of their own: 1 where all vary by themselves, 1/pairs where
    all vary together.
    """
    columns = [sorted({step for pair in pairs for step in pair[side]}) for side in (0, 1)]
    rows = np.zeros((len(pairs), sum(map(len, columns))))
    for row, pair in zip(rows, pairs, strict=True):
        first = 0
        for steps, numbers in zip(pair, columns, strict=True):
            mean = sum(steps.values()) / len(steps)
            row[first : first + len(numbers)] = [steps.get(step, mean) - mean for step in numbers]
            first += len(numbers)
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    alike = (rows / np.maximum(sizes, 1e-300)) @ (rows / np.maximum(sizes, 1e-300)).T
    return len(pairs) / max(float((alike**2).sum()), len(pairs))


def _weighed(explained: Floats, own: float) -> Floats:
    """The weight of all that is weighed for every pair (rows), from how well it explains that pair and, at
    the weight `own`, the others.
    """
    families = _families()
    of_family = np.log(np.maximum(explained @ families.T, 1e-300))
    others = own * (of_family.sum(axis=0) - of_family)
    prior = np.exp(others - others.max(axis=1, keepdims=True)) @ families
    weights = explained * prior
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@lru_cache(maxsize=1)
def _families() -> Floats:
    """What the correlations of all phases may be spread like, a row each: normal in the logit, about any
    mean, closely or widely.
    """
    shifted = CORRELATIONS + 0.02
    logit = np.log(shifted / (1 - CORRELATIONS))
    rows = np.array(
        [
            np.exp(-(((logit - mean) / spread) ** 2) / 2) / (shifted * (1 - CORRELATIONS))
            for mean in np.linspace(-3.5, 3.5, 15)
            for spread in (0.3, 1.2, 4.0)
        ]
    )
    rows = rows / rows.sum(axis=1, keepdims=True)
    return np.concatenate([likely * rows for likely in _OWN_BEFORE], axis=1)


def _difference(one: _Run, two: _Run, weights: Floats, level: float) -> Difference:
    errors = np.sqrt(one.of_mean + two.of_mean)
    first, second = float(weights @ one.of_mean), float(weights @ two.of_mean)
    freedom = _rounded((first + second) ** 2 / (first**2 / (one.count - 1) + second**2 / (two.count - 1)))
    low, high = 0.0, quantile(1 - level / 2, freedom) * float(errors.max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if 2 * weights @ chance_above(middle / errors, freedom) > level:
            low = middle
        else:
            high = middle
    # nothing varies in either run
    nothing = float(errors.max()) <= 10 * _NOTHING * max(abs(one.mean), abs(two.mean))
    shorter = min(one, two, key=lambda run: run.steps)
    spreads = (float(weights @ one.variance) ** 0.5, float(weights @ two.variance) ** 0.5)
    return Difference(
        0.0 if nothing else high, errors, weights, spreads,
        shorter.steps, shorter.steps / shorter.count, freedom, level,
    )  # fmt: skip


def _rounded(freedom: float) -> float:
    """Down to quarters, and of many to whole ones, so that tables of the distribution are made once."""
    return max(floor(freedom) if freedom > _MANY else floor(4 * freedom) / 4, 1.0)
