"""How often `rlprof diff` calls equal runs different, and how often it finds a run that is 10 % slower.

A run has six phases of two workers and its steps, each with a noise of 4 % of its own. Neighbouring steps
are alike by rho (an autoregression of the first order):

- `each`: phases and steps vary by themselves,
- `shared`: nine tenths of the noise (by variance) is one that all of them share,
- `one`: only the step is alike by rho, the noise of the phases is white,
- `measured`: as `each`, and a fifth of the noise (by variance) is white.

false: equal runs of which anything is called slower or faster. step: runs whose step and phases all take 10
% longer, of which the step is called slower; anything: of which anything is. a phase: runs in which one
phase takes 10 % longer, of which it is called slower. At most 2 of 100 equal runs may differ (or three
sigma of the simulation more) in all but `one`.

The second table has whole simulated loops of 4 rollout and 4 policy ranks, read by the report: 4 % of a
rank's phase is alike by rho, 2 % of each of its pieces is white. Their phase is the training.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import structs
from tests.analyze.as_data import typed
from tests.analyze.causes.loops import MEANS
from tests.analyze.simulated import simulated_answer
from tests.bench.harness import Run
from tests.bench.truth.planted import CORRELATED, noisy_loop, told

from rlprof_ops.analyze.output.run_diff import Diff, compare
from rlprof_ops.analyze.report_model import Answer

QUICK = {"pairs": 3}
STEPS, RHOS, NOISE, SLOWER, SHARED = (6, 20, 50), (0.0, 0.5, 0.8), 0.04, 0.10, 0.9
WHITE = 0.2  # of `measured`
MODELS = ("each", "shared", "one", "measured")
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
    if model == "measured":
        own = (1 - WHITE) ** 0.5 * own + WHITE**0.5 * rng.standard_normal(own.shape)
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


def loop(seed: int, steps: int, rho: float, slower: Collection[str] = ()) -> Answer:
    """A whole loop, in which the phases of these names take 10 % longer."""
    made = noisy_loop(
        seed, next((name for name, of in CORRELATED.items() if of == rho), "white"), steps=steps
    )
    for (_, _, phase, _), pieces in made.work.items():
        if phase in slower:
            pieces[:] = [round(ns * (1 + SLOWER)) for ns in pieces]
    return typed(told(made))


def loops(steps: int, rho: float, pairs: int, slower: int) -> Shares:
    false = step = anything = phase = 0
    for pair in range(max(pairs, slower)):
        before, seed = loop(2 * pair, steps, rho), 2 * pair + 1
        if pair < pairs:
            false += is_named(compare(before, loop(seed, steps, rho)))
        if pair < slower:
            diff = compare(before, loop(seed, steps, rho, MEANS))
            step += diff.step.verdict == "slower"
            anything += is_named(diff)
            rows = compare(before, loop(seed, steps, rho, {"train"})).phases
            phase += any(row.verdict == "slower" for row in rows if row.what.endswith("/train"))
    kinds = max(slower, 1)
    return Shares(false / max(pairs, 1), step / kinds, anything / kinds, phase / kinds)


def bench(
    run: Run,
    *,
    pairs: int = 300,
    model: Literal["each", "shared", "one", "measured", "loop"] | None = None,
) -> None:
    worst = 0.0
    names = ("steps", "rho", "false, %", "+10 %: step, %", "anything, %", "a phase +10 %, %")

    def row(steps: int, rho: float, it: Shares, *before: str) -> float:
        run.row(
            *before,
            steps,
            rho,
            f"{100 * it.false:.1f}",
            *(f"{100 * s:.0f}" for s in (it.step, it.anything, it.phase)),
        )
        return it.false

    run.head("noise", *names)
    for each in [] if model == "loop" else [model] if model else MODELS:
        for steps in STEPS:
            for rho in RHOS if each != "one" else RHOS[1:]:
                false = row(steps, rho, simulate(each, steps, rho, pairs, pairs // 3), each)
                worst = max(worst, false if each != "one" else 0.0)
    if model in (None, "loop"):
        run.head(*names)
        for steps in STEPS:
            for rho in RHOS:
                worst = max(worst, row(steps, rho, loops(steps, rho, pairs // 3, pairs // 10)))
    most = LIMIT + 3 * (LIMIT * (1 - LIMIT) / pairs) ** 0.5
    run.limit("equal pairs that differ", 100 * worst, 100 * most, "%")
