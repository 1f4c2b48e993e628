"""The statistics of a straggler: which of many ranks is slower than the others in most steps, by more than
chance makes of equal ranks whatever their noise is like.

A wrong name is worse than none. Two tests guard it. Student's t on the noise of all ranks together is the
sharper one, and trusts that noise is normal. A rank's neighbouring steps may be alike: the test weighs every
correlation that is possible by how well it explains the noise of all ranks. The other test trusts only that
equal ranks are exchangeable: where a rank comes among all ranks, step by step, depends on chance alone, so
bursts of contention, heavy tails and noise that the ranks of a node share do not mislead it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# The chance that a run of equal ranks passes either test, shared among phases and ranks: one in a hundred is
# the promise, and noise that the phases of a step share takes the rest.
FALSE_NAMES = 0.0075
MIN_STEPS_SLOWER = 0.75
MIN_STEPS = 2  # one step gives no noise to hold a difference against
MIN_STEPS_OF_FEW = 3  # where too few ranks and steps leave the order of the ranks no evidence
# Of neighbouring steps; with more, a run of some tens of steps has no mean to speak of.
CORRELATIONS = np.linspace(0, 0.85, 40)
_GRID = 0.01  # of the scores
_POINTS = 20_001  # of the density of Student's t, which is known here without SciPy
_MOST_FREEDOM = 10_000  # beyond, the distribution is the normal one for our purposes


@dataclass(frozen=True)
class SlowRank:
    """One rank, or node, that passed, by its row; nanoseconds a step over the median of the others."""

    row: int
    excess: float
    steps: int
    steps_slower: int
    error: float  # standard error of the excess


def slow_ranks(own: Floats, least: float, phases: int = 1, weights: Floats | None = None) -> list[SlowRank]:
    """The slow rows of `own`, (ranks, steps) own times with NaN where a rank was not seen in a step.

    A row passes when the mean and the median of its excess are at least `least`, it is slower in three
    quarters of its steps, and both tests exclude chance at the level that `phases` leave to this one.
    `weights` of the correlations of neighbouring steps, where more than these rows tells them (`weights_of`).
    """
    return slow_rows(own, excess_of(own), least, phases, weights)


def slow_rows(
    own: Floats, excess: Floats, least: float, phases: int = 1, weights: Floats | None = None
) -> list[SlowRank]:
    """As `slow_ranks`, where what each row exceeds the others by is known."""
    ranks = int((~np.isnan(own)).any(axis=1).sum())
    if ranks < 2 or own.shape[1] < MIN_STEPS:
        return []
    level = FALSE_NAMES / max(phases, 1)
    seen = ~np.isnan(excess)
    steps = seen.sum(axis=1)
    mean = np.nansum(excess, axis=1) / np.maximum(steps, 1)
    candidates = np.flatnonzero((steps >= MIN_STEPS) & (mean >= least) & (mean > 0))
    if len(candidates) == 0:
        return []
    noise, found = ExcessNoise.of(excess), []
    weights = weights_of([noise.likelihood]) if weights is None else weights
    for row in candidates.tolist():
        count = int(steps[row])
        mine = excess[row][seen[row]]
        slower = int((mine > 0).sum())
        if np.median(mine) < least or slower < MIN_STEPS_SLOWER * count:
            continue
        if ranks * noise.chance(mean[row], count, weights) > level or _by_chance(
            own, excess, row, least, level
        ):
            continue
        error = float(mine.std(ddof=1)) / count**0.5
        found.append(SlowRank(row, float(mean[row]), count, slower, error))
    return found


def median_row(times: Floats) -> Floats:
    """The median of each column over the rows that are there; NaN where none is."""
    count = (~np.isnan(times)).sum(axis=0)
    ordered = np.sort(times, axis=0)  # absent ones come last
    columns = np.arange(times.shape[1])
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, np.maximum(count - 1, 0))
    return np.asarray((ordered[low, columns] + ordered[high, columns]) / 2)


def _by_chance(own: Floats, excess: Floats, row: int, least: float, level: float) -> bool:
    """Whether the order of the ranks leaves chance as an explanation.

    The evidence of a step is the log of ranks over place, place 1 being the slowest and ties the mean of
    their places. Where even the slowest in every step is too likely by chance (ranks^(1 - steps) > level), it
    must be that, over three steps at least, by what matters and by more than any other rank ever exceeds the
    others, and the t test decides.
    """
    there = ~np.isnan(own[row]) & ((~np.isnan(own)).sum(axis=0) > 1)
    others, value = own[:, there], own[row, there]
    present = (~np.isnan(others)).sum(axis=0)
    above, ties = (others > value).sum(axis=0), (others == value).sum(axis=0)
    ranks, steps = int((~np.isnan(own)).any(axis=1).sum()), int(there.sum())
    if float(ranks) ** (1 - steps) > level:
        smallest, largest_other = np.nanmin(excess[row]), np.nanmax(np.delete(excess, row, axis=0))
        return not (steps >= MIN_STEPS_OF_FEW and smallest >= least and smallest > largest_other)
    score = float(np.log(present / (above + (ties + 1) / 2)).sum())
    return ranks * _tail(ranks, steps, score) > level


def excess_of(own: Floats) -> Floats:
    """Each rank's time in each step less the median of the others'; NaN where it, or all others, are
    absent.
    """
    order = np.argsort(own, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(own))[:, None], axis=0)
    ordered = np.take_along_axis(own, order, axis=0)  # absent ones come last
    others = (~np.isnan(own)).sum(axis=0) - 1
    low, high = np.maximum(others - 1, 0) // 2, np.maximum(others, 0) // 2
    high = np.minimum(high, np.maximum(others - 1, 0))
    medians = (
        np.take_along_axis(ordered, np.minimum(low + (low >= place), len(own) - 1), axis=0)
        + np.take_along_axis(ordered, np.minimum(high + (high >= place), len(own) - 1), axis=0)
    ) / 2
    return np.where(others > 0, own - medians, np.nan)


@dataclass(frozen=True)
class ExcessNoise:
    """How an excess moves from step to step on all ranks. By correlation of neighbouring steps: the standard
    deviation of a step, and the log of how well that correlation explains what was seen.

    Ranks that differ for good do not add to it, for each is held against its own mean.
    """

    spread: Floats
    likelihood: Floats
    freedom: int

    @classmethod
    def of(cls, excess: Floats) -> ExcessNoise:
        """An autoregression of the first order, its mean and spread integrated out. Steps that a rank lacks
        count as its mean.
        """
        seen = ~np.isnan(excess)
        steps, ranks = seen.sum(axis=1), int(seen.any(axis=1).sum())
        mean = np.nansum(excess, axis=1) / np.maximum(steps, 1)
        apart = np.where(seen, excess - mean[:, None], 0.0)
        left, length = max(int(np.maximum(steps - 1, 0).sum()), 1), excess.shape[1]
        rho, first, last = CORRELATIONS, apart[:, 0], apart[:, -1]
        explained = float((apart**2).sum()) * (1 + rho**2)
        explained -= 2 * rho * float((apart[:, 1:] * apart[:, :-1]).sum())
        explained -= rho**2 * float((first**2 + last**2).sum())
        known = (length * (1 - rho) + 2 * rho) / (1 + rho)  # of a mean: the sum of the inverse correlations
        explained = explained / (1 - rho**2)
        explained -= (rho / (1 + rho)) ** 2 * float(((first + last) ** 2).sum()) / known
        explained = np.maximum(explained, 1e-300)
        # the excesses of a step are one number fewer than the ranks: with two, one is the other's negative
        freedom = max(round(left * (1 - 1 / max(ranks, 1))), 1)
        size = np.log(1 - rho**2) + np.log(known) / max(length - 1, 1)
        return cls((explained / left) ** 0.5, -freedom * (size + np.log(explained)) / 2, freedom)

    def chance(self, mean: float, steps: int, weights: Floats) -> float:
        """That a rank like all others has such a mean excess over so many steps, over all correlations."""
        errors = self.spread * (inflation(steps) / steps) ** 0.5
        return float(weights @ chance_above(mean / errors, self.freedom))


def weights_of(likelihoods: Iterable[Floats]) -> Floats:
    """How much each correlation counts, from how well it explains all phases together. Beforehand the more
    alike neighbouring steps would be, the less likely that is.
    """
    found = sum(likelihoods, np.log(1 - CORRELATIONS))
    weights = np.exp(found - found.max())
    return np.asarray(weights / weights.sum())


def inflation(steps: float) -> Floats:
    """By correlation, how many times as far the mean of so many steps is off as that of independent ones, as
    a variance.
    """
    alike = CORRELATIONS / (1 - CORRELATIONS)
    return 1 + 2 * alike - 2 * alike * (1 - CORRELATIONS**steps) / (1 - CORRELATIONS) / steps


def _tail(ranks: int, steps: int, score: float) -> float:
    """The chance that the scores of one rank add up to `score` or more in `steps` random orders."""
    tail = _tails(ranks, steps)
    at = int(np.floor(score / _GRID))
    return float(tail[at]) if at < len(tail) else 0.0


@cache
def _tails(ranks: int, steps: int) -> Floats:
    """P(sum >= i grid steps) for every i; each score is rounded up to the grid, so that it is no less."""
    cells = np.ceil(np.log(ranks / np.arange(1, ranks + 1)) / _GRID - 1e-9).astype(np.int64)
    one = np.bincount(cells) / ranks
    whole = np.ones(1)
    for _ in range(steps):
        whole = np.convolve(whole, one)
    tail: Floats = np.cumsum(whole[::-1])[::-1].copy()
    return tail


@cache
def quantile(probability: float, freedom: float) -> float:
    """The value that Student's t with `freedom` degrees stays below with `probability` (0.5 to 1, exclusive).

    Raises:
        ValueError: `probability` or `freedom` is outside of what is said here.
    """
    if not 0.5 < probability < 1 or freedom < 1:
        raise ValueError(
            f"probability {probability} and {freedom} degrees of freedom: give 0.5 < probability < 1 and at"
            " least 1 degree"
        )
    freedom = min(freedom, _MOST_FREEDOM)
    angle, above = _student(freedom)
    found = np.interp(1 - probability, above[::-1], angle[::-1])
    return float(np.sqrt(freedom) * np.tan(found))


def chance_above(values: Floats, freedom: float) -> Floats:
    """The chance that Student's t with `freedom` degrees (1 or more) exceeds each of `values`."""
    freedom = min(freedom, _MOST_FREEDOM)
    angle, above = _student(freedom)
    tail = np.interp(np.arctan(np.abs(values) / np.sqrt(freedom)), angle, above)
    return np.asarray(np.where(values < 0, 1 - tail, tail))


@lru_cache(maxsize=64)
def _student(freedom: float) -> tuple[Floats, Floats]:
    """Angles a from 0 to a right angle, and the chance that t exceeds sqrt(freedom) tan(a).

    With t = sqrt(freedom) tan(a) the density becomes cos(a)^(freedom - 1), which is summed over a.
    """
    angle = np.linspace(0, np.pi / 2, _POINTS)
    density = np.cos(angle) ** (freedom - 1)
    inwards = np.cumsum((density[::-1][1:] + density[::-1][:-1]) / 2)  # from the far end
    above = np.concatenate(([0.0], inwards))[::-1]
    return angle, above / (2 * above[0])
