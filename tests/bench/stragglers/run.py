"""How often a straggler is named, and how often another rank is: the report's own test on simulated runs.

python tests/bench/stragglers/run.py [--runs 1000] [--check]

A run has four phases. Times are 100 in the mean with a spread from step to step, and

- `normal`: every rank and step its own normal noise of the spread,
- `colocation`: half of the noise is shared by the eight ranks of a node, step by step (a neighbour on it),
- `bursts`: normal noise, and one rank and step in ten is hit by contention and takes half as long again,
- `tails`: noise of the spread from Student's t with three degrees of freedom.

false: runs without a slow rank in which anybody is named, or with one in which another rank or phase is.
named: runs in which the rank that takes 10 % (25 %) longer in one phase is.
`--check` fails where more than 1 % of the runs are false (by more than three sigma of the simulation).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rlprof_ops.analyze.causes.significance import slow_ranks
from rlprof_ops.analyze.causes.stragglers import MIN_SHARE_OF_PHASE

PHASES, NODE, MEAN = 4, 8, 100.0
RANKS, STEPS, SPREADS = (2, 8, 16, 256), (2, 3, 5, 10, 20), (0.02, 0.05, 0.10)
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


NOISES: dict[str, Callable[[np.random.Generator, tuple[int, int, int], float], Noise]] = {
    f.__name__: f for f in (normal, colocation, bursts, tails)
}


def names(times: Noise) -> list[tuple[int, int]]:
    """(phase, rank) of everybody whom the report would name."""
    return [
        (phase, slow.row)
        for phase, own in enumerate(times)
        for slow in slow_ranks(MEAN * own, MIN_SHARE_OF_PHASE * MEAN * float(own.mean()), PHASES)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    limit = 0.01 + 3 * (0.01 * 0.99 / options.runs) ** 0.5
    print("| noise | ranks | steps | false at 2, 5, 10 % | +10 % named at 2, 5, 10 % | +25 % named |")
    print("|---|---|---|---|---|---|")
    worst, begun = 0.0, time.monotonic()
    for noise in NOISES:
        for ranks in RANKS:
            for steps in STEPS:
                runs = options.runs if ranks <= 16 else max(options.runs // 2, 50)
                rows = {
                    (spread, slow): simulate(
                        noise, ranks, steps, spread, slow, runs if not slow else runs // 4
                    )
                    for spread in SPREADS
                    for slow in (0.0, 0.1, 0.25)
                }
                false = [rows[spread, 0.0][0] for spread in SPREADS]
                others = [rows[spread, slow][0] for spread in SPREADS for slow in (0.1, 0.25)]
                worst = max(worst, *false, sum(others) / len(others))
                ten, more = ([rows[s, slow][1] for s in SPREADS] for slow in (0.1, 0.25))
                cells = [
                    ", ".join(f"{100 * x:.1f}" for x in false),
                    *(", ".join(f"{100 * x:.0f}" for x in part) for part in (ten, more)),
                ]
                print(f"| {noise} | {ranks} | {steps} | {' | '.join(cells)} |", flush=True)
    print(f"\nworst false: {100 * worst:.1f} % ({time.monotonic() - begun:.0f} s)")
    if options.check and worst > limit:
        sys.exit(
            f"more than 1 % of the runs have a false name: {100 * worst:.2f} % (limit {100 * limit:.2f} %)"
        )


if __name__ == "__main__":
    main()
