"""Simulated runs for the detectors: noisy healthy steps as RL runs have them, and faults put into them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from rlprof_ops.recorder.samples.step_marks import ToldStep
from rlprof_ops.runtime.ranges.phase_times import Phase

PHASES = {"generation": 6.0, "reward": 0.4, "logprob": 1.0, "train": 2.5, "weight_sync": 0.3}
BEGIN_NS = 1_760_000_000_000_000_000


def healthy(seed: int, steps: int, ranks: int = 8) -> Iterator[list[ToldStep]]:
    """Step by step, the driver's row and one row a rank.

    Generation has a long tail and drifts as answers grow; ranks differ by a few percent for good and from
    step to step; the first steps compile; every 25th is evaluated, every 50th saved.
    """
    rng = random.Random(seed)
    own = [rng.gauss(0, 0.03) for _ in range(ranks)]
    t_ns = BEGIN_NS
    for step in range(1, steps + 1):
        drift = 1 + 0.4 * step / steps
        told, longest = [], 0.0
        common = {name: rng.lognormvariate(0, 0.05) for name in PHASES}
        if rng.random() < 0.1:
            common["generation"] *= rng.uniform(1.0, 1.25)
        for rank in range(ranks):
            phases, at = {}, 0.0
            for name, seconds in PHASES.items():
                seconds *= common[name] * rng.lognormvariate(own[rank], 0.06)
                seconds *= drift if name == "generation" else 1.0
                seconds *= 3.0 if step <= 2 else 1.0
                phases[name] = Phase(1, at, seconds, seconds)
                at += seconds
            longest = max(longest, at)
            told.append(ToldStep("policy_worker", rank, 100 + rank, False, step, t_ns, at, phases))
        mean = {name: max(row.phases[name].seconds for row in told) for name in PHASES}
        extra = {"evaluation": 40.0 * (step % 25 == 0), "save_checkpoint": 15.0 * (step % 50 == 0)}
        phases, at = {}, 0.0
        for name, seconds in (mean | {name: s for name, s in extra.items() if s}).items():
            phases[name] = Phase(1, at, seconds, seconds)
            at += seconds
        yield [ToldStep("driver", 0, 1, True, step, t_ns, at * 1.01, phases), *told]
        t_ns += int(at * 1.02e9)


def slower(told: list[ToldStep], rank: int, phase: str, factor: float) -> list[ToldStep]:
    """The same step with one phase of one rank slower, and the driver's with it."""
    found = []
    for row in told:
        if row.leads or row.rank == rank:
            before = row.phases[phase]
            more = before.seconds * (factor - 1)
            after = replace(before, seconds=before.seconds + more, own_s=before.own_s + more)
            row = replace(row, seconds=row.seconds + more, phases={**row.phases, phase: after})
        found.append(row)
    return found
