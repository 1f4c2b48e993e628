"""How often a planted cause is the first finding, and how far off is what mending it is said to save.

The tables of docs/accuracy.md. first: the first finding is about the cause. anywhere: one is. wrong: runs in
which a rank, node, group, tail or pause is named that is none. What-ifs are off by a share of what the
change really saves, by simulating again. A cause has to lead in 28 of 30 runs (--seeds), at most 1 of 60
runs without one may name any, and a what-if be off by at most 10 % in the median and 25 % in the worst run.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tests.bench.harness import Run
from tests.bench.truth.planted import CAUSES, LOOPS, NOISES, Answer, faster, without_cause

QUICK = {"seeds": 1}
ACCUSE = {"straggler", "slow_group", "pause", "tail"}
LEAST_FIRST, MOST_FALSE = 28 / 30, 1 / 60
MEDIAN, WORST = 0.10, 0.25


def accused(answer: Answer) -> list[dict[str, object]]:
    return [finding for finding in answer["findings"] if finding["kind"] in ACCUSE]


def off(errors: Sequence[float]) -> tuple[list[str], bool]:
    """Two cells of a row, and whether they are within what is promised."""
    if not errors:
        return ["–", "–"], True
    within = median(errors) <= MEDIAN and max(errors) <= WORST
    return [f"{100 * error:.1f} %" for error in (median(errors), max(errors))], within


def row_of(cause: str, seeds: range) -> tuple[list[object], bool]:
    """A row of the table, and whether it is as it should be."""
    first = anywhere = wrong = 0
    errors = []
    for seed in seeds:
        planted = CAUSES[cause](seed)
        about = [planted.named(planted.answer, finding) for finding in planted.answer["findings"]]
        first += about[0]
        anywhere += any(about)
        wrong += any(not planted.named(planted.answer, finding) for finding in accused(planted.answer))
        saves = planted.saves_ns()
        if planted.truth_ns and saves is not None:
            errors.append(abs(saves - planted.truth_ns) / planted.truth_ns)
    cells, within = off(errors)
    return [cause, first, anywhere, wrong, *cells], within and first >= LEAST_FIRST * len(seeds)


def bench(run: Run, *, seeds: int = 30, only: str | None = None) -> None:
    some = range(seeds)
    run.head("cause", f"first, of {seeds}", "anywhere", "wrong", "what-if off by, median", "worst")
    for cause in CAUSES if only is None else [only]:
        cells, right = row_of(cause, some)
        run.row(*cells)
        if not (right or run.quick):
            run.missed.append(cause)
    if only is not None:
        return
    runs = 2 * seeds
    for noise in NOISES:
        false = sum(bool(accused(without_cause(seed, noise))) for seed in range(runs))
        run.row(f"none, {noise}, of {runs} runs", "–", "–", false, "–", "–")
        if false > MOST_FALSE * runs and not run.quick:
            run.missed.append(f"none, {noise}: {false} name something")
    run.head("loop", "20 % faster", "told, of runs", "off by, median", "worst")
    for kind, phase in LOOPS:
        found = [faster(seed, kind, phase) for seed in some]
        told = [(saves, truth) for saves, truth in found if saves is not None]
        cells, within = off([abs(saves - truth) / truth for saves, truth in told])
        run.row(kind, phase, len(told), *cells)
        if not (within or run.quick):
            run.missed.append(f"what-if, {kind} {phase}")
