"""How often a straggler is named, and how often another rank is: the report's own test on simulated runs.

A run has four phases. Times are 100 in the mean with a spread from step to step, and

- `normal`: every rank and step its own normal noise of the spread,
- `colocation`: half of the noise is shared by the eight ranks of a node, step by step (a neighbour on it),
- `bursts`: normal noise, and one rank and step in ten is hit by contention and takes half as long again,
- `tails`: noise of the spread from Student's t with three degrees of freedom,
- `alike`: normal noise whose neighbouring steps are alike by 0.8 (an autoregression of the first order).

false: runs without a slow rank in which anybody is named, or with one in which another rank or phase is; at
most 1 % (or three sigma of the simulation more). named: runs in which the rank that takes 10 % (25 %)
longer in one phase is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from tests.bench.harness import Run

from rlprof_ops.analyze.causes.significance import ExcessNoise, excess_of, slow_ranks, weights_of
from rlprof_ops.analyze.causes.stragglers import MIN_SHARE_OF_PHASE

QUICK = {"runs": 4, "ranks": (2, 16)}
PHASES, NODE, MEAN, ALIKE = 4, 8, 100.0, 0.8
STEPS, SPREADS = (2, 3, 5, 10, 20), (0.02, 0.05, 0.10)
LIMIT = 0.01
Noise = npt.NDArray[np.float64]  # (phases, ranks, steps), 1 in the mean


def normal(rng: np.random.Generator, shape: tuple[int, int, int], spread: float) -> Noise:
    return 1 + spread * rng.standard_normal(shape)


def colocation(rng: np.random.Generator, shape: tuple[int, int, int], spread: float) -> Noise:
    phases, ranks, steps = shape
    nodes = rng.standard_normal((phases, -(-ranks // NODE), steps))
    shared = np.repeat(nodes, NODE, axis=1)[:, :ranks]
    return np.asarray(1 + spread * (shared + rng.standard_normal(shape)) / 2**0.5)


def bursts(rng: np.random.Generator, shape: tuple[int, int, int], spread: float) -> Noise:
    return normal(rng, shape, spread) + 0.5 * (rng.random((1, *shape[1:])) < 0.1)


def tails(rng: np.random.Generator, shape: tuple[int, int, int], spread: float) -> Noise:
    return np.maximum(1 + spread * rng.standard_t(3, shape) / 3**0.5, 0.05)


def alike(rng: np.random.Generator, shape: tuple[int, int, int], spread: float) -> Noise:
    found = rng.standard_normal(shape)
    for step in range(1, shape[2]):
        found[..., step] = ALIKE * found[..., step - 1] + (1 - ALIKE**2) ** 0.5 * found[..., step]
    return np.asarray(np.maximum(1 + spread * found, 0.05))


NOISES: dict[str, Callable[[np.random.Generator, tuple[int, int, int], float], Noise]] = {
    f.__name__: f for f in (normal, colocation, bursts, tails, alike)
}


def names(times: Noise) -> list[tuple[int, int]]:
    """(phase, rank) of everybody whom the report would name."""
    weights = weights_of(ExcessNoise.of(excess_of(own)).likelihood for own in times)
    return [
        (phase, slow.row)
        for phase, own in enumerate(times)
        for slow in slow_ranks(MEAN * own, MIN_SHARE_OF_PHASE * MEAN * float(own.mean()), PHASES, weights)
    ]


def simulate(
    noise: str, ranks: int, steps: int, spread: float, slow: float, runs: int
) -> tuple[float, float]:
    """The shares of runs with a false name, and with the slow rank named."""
    rng = np.random.default_rng([ranks, steps, round(100 * spread), len(noise), round(100 * slow)])
    false = named = 0
    for _ in range(runs):
        times = NOISES[noise](rng, (PHASES, ranks, steps), spread)
        times[1, 1] += slow
        found = names(times)
        false += any(name != (1, 1) or not slow for name in found)
        named += bool(slow) and (1, 1) in found
    return false / runs, named / runs


def bench(run: Run, *, runs: int = 1000, ranks: tuple[int, ...] = (2, 8, 16, 256)) -> None:
    shares = ("false at 2, 5, 10 %", "+10 % named at 2, 5, 10 %", "+25 % named")
    run.head("noise     ", "ranks", "steps", *shares)
    worst = 0.0
    for noise in NOISES:
        for count in ranks:
            for steps in STEPS:
                some = runs if count <= 16 else max(runs // 2, 50)
                rows = {
                    (spread, slow): simulate(
                        noise, count, steps, spread, slow, max(some // 4, 1) if slow else some
                    )
                    for spread in SPREADS
                    for slow in (0.0, 0.1, 0.25)
                }
                false = [rows[spread, 0.0][0] for spread in SPREADS]
                others = [rows[spread, slow][0] for spread in SPREADS for slow in (0.1, 0.25)]
                worst = max(worst, *false, sum(others) / len(others))
                ten, more = ([rows[s, slow][1] for s in SPREADS] for slow in (0.1, 0.25))
                named = (", ".join(f"{100 * x:.0f}" for x in part) for part in (ten, more))
                run.row(noise, count, steps, ", ".join(f"{100 * x:.1f}" for x in false), *named)
    most = LIMIT + 3 * (LIMIT * (1 - LIMIT) / runs) ** 0.5
    run.limit("runs with a false name", 100 * worst, 100 * most, "%")
