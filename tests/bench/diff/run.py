"""How often `rlprof diff` calls equal runs different, and how often it finds a run that is 10 % slower.

python tests/bench/diff/run.py [--pairs 300] [--model each] [--check]

A run has six phases of two workers and its steps, each with a noise of 4 % of its own. Neighbouring steps are
alike by rho (an autoregression of the first order):

- `each`: phases and steps vary by themselves,
- `shared`: nine tenths of the noise (by variance) is one that all of them share,
- `one`: only the step is alike by rho, the noise of the phases is white.

false: equal runs of which anything is called slower or faster. step: runs whose step and phases all take
10 % longer, of which the step is called slower; anything: of which anything is. a phase: runs in which one
phase takes 10 % longer, of which it is called slower.
`--check` fails where more than 2 of 100 equal runs differ (by more than three sigma of the simulation) in
`each` or `shared`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import structs

sys.path[:0] = [str(Path(__file__).resolve().parents[3]), str(Path(__file__).resolve().parents[3] / "python")]

from tests.analyze.as_data import typed  # noqa: E402
from tests.analyze.simulated import simulated_answer  # noqa: E402

from rlprof_ops.analyze.output.run_diff import Diff, compare  # noqa: E402
from rlprof_ops.analyze.report_model import Answer  # noqa: E402

STEPS, RHOS, NOISE, SLOWER, SHARED = (6, 20, 50), (0.0, 0.5, 0.8), 0.04, 0.10, 0.9
MODELS = ("each", "shared", "one")
LIMIT = 0.02
MEAN_NS = 10_000_000
PHASE = 2  # of the answer's, the one that is made slower alone
Factors = npt.NDArray[np.float64]  # (steps, 1 + phases), 1 in the mean; the step's own come first


@cache
def template(steps: int) -> Answer:
    """Every step and phase as long as any other; what varies is `factors` alone."""
    usual = typed(simulated_answer(4, steps))
    anatomy = [
        structs.replace(row, phases=[structs.replace(part, duration_ns=MEAN_NS) for part in row.phases])
        for row in usual.anatomy
    ]
    return structs.replace(usual, anatomy=anatomy)


def autoregression(rng: np.random.Generator, steps: int, columns: int, rho: float) -> Factors:
    """Steady from the first step on, of variance 1."""
    found = rng.standard_normal((steps, columns))
    for step in range(1, steps):
        found[step] = rho * found[step - 1] + (1 - rho**2) ** 0.5 * found[step]
    return found


def factors(rng: np.random.Generator, model: str, steps: int, rho: float, noise: float = NOISE) -> Factors:
    columns = 1 + len(template(1).phase_names)
    own = autoregression(rng, steps, columns, 0.0 if model == "one" else rho)
    if model == "one":
        own[:, 0] = autoregression(rng, steps, 1, rho)[:, 0]
    if model == "shared":
        own = SHARED**0.5 * autoregression(rng, steps, 1, rho) + (1 - SHARED) ** 0.5 * own
    return 1 + noise * own


def answer(times: Factors) -> Answer:
    """A run whose step and phases take so many times as long as usual."""
    usual = template(len(times))
    steps = [
        structs.replace(row, duration_ns=round(row.duration_ns * float(times[i, 0])))
        for i, row in enumerate(usual.steps)
    ]
    first = usual.steps[0].step
    anatomy = [
        structs.replace(
            row,
            phases=[
                structs.replace(
                    part, duration_ns=round(part.duration_ns * float(times[row.step - first, 1 + part.phase]))
                )
                for part in row.phases
            ],
        )
        for row in usual.anatomy
    ]
    return structs.replace(usual, steps=steps, anatomy=anatomy)


@dataclass
class Shares:
    """Of the pairs of equal runs, and of those with something slower."""

    false: float
    step: float = 0.0
    anything: float = 0.0
    phase: float = 0.0


def is_named(diff: Diff) -> bool:
    return diff.step.real or any(change.real for change in diff.phases)


def simulate(model: str, steps: int, rho: float, pairs: int, slower: int) -> Shares:
    """`pairs` of equal runs; `slower` of each kind of slower ones."""
    rng = np.random.default_rng([MODELS.index(model), steps, round(100 * rho)])
    false = step = anything = phase = 0
    name = template(1).phase_names[PHASE]
    for pair in range(max(pairs, slower)):
        one, two = (factors(rng, model, steps, rho) for _ in range(2))
        before = answer(one)
        if pair < pairs:
            false += is_named(compare(before, answer(two)))
        if pair < slower:
            diff = compare(before, answer(two * (1 + SLOWER)))
            step += diff.step.verdict == "slower"
            anything += is_named(diff)
            two[:, 1 + PHASE] *= 1 + SLOWER
            rows = [row for row in compare(before, answer(two)).phases if row.what.endswith(f"/{name}")]
            phase += any(row.verdict == "slower" for row in rows)
    kinds = max(slower, 1)
    return Shares(false / max(pairs, 1), step / kinds, anything / kinds, phase / kinds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    worst, begun = 0.0, time.monotonic()
    print("| noise | steps | rho | false, % | +10 %: step, % | anything, % | a phase +10 %, % |")
    print("|---|---|---|---|---|---|---|")
    for model in [options.model] if options.model else MODELS:
        for steps in STEPS:
            for rho in RHOS if model != "one" else RHOS[1:]:
                it = simulate(model, steps, rho, options.pairs, options.pairs // 3)
                worst = max(worst, it.false if model != "one" else 0.0)
                powers = " | ".join(f"{100 * share:.0f}" for share in (it.step, it.anything, it.phase))
                print(f"| {model} | {steps} | {rho} | {100 * it.false:.1f} | {powers} |", flush=True)
    print(f"\nworst false: {100 * worst:.1f} % ({time.monotonic() - begun:.0f} s)")
    if options.check and worst > LIMIT + 3 * (LIMIT * (1 - LIMIT) / options.pairs) ** 0.5:
        sys.exit(f"more than 2 of 100 equal pairs of runs differ: {100 * worst:.1f} %")


if __name__ == "__main__":
    main()
