"""How often a planted cause is the first finding, and how far off is what mending it is said to save.

    python tests/bench/truth/causes.py [--seeds 30] [--only "slow group"]

Prints the tables of docs/report.md. first: the first finding is about the cause. anywhere: one is. wrong:
runs in which a rank, node, group, tail or pause is named that is none. What-ifs are off by a share of what
the change really saves, by simulating again. The exit code is 1 if a cause leads in fewer than 28 of 30 runs,
if more than 1 of 60 runs without one names any, or if a what-if is off by more than 10 % in the median or by
more than 25 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).resolve().parents[3]), str(Path(__file__).resolve().parents[3] / "python")]

from tests.bench.truth.planted import CAUSES, LOOPS, Answer, faster, with_correlated_noise, without_cause  # noqa: E402

ACCUSE = {"straggler", "slow_group", "pause", "tail"}
LEAST_FIRST, MOST_FALSE = 28 / 30, 1 / 60
MEDIAN, WORST = 0.10, 0.25


def accused(answer: Answer) -> list[dict[str, object]]:
    return [finding for finding in answer["findings"] if finding["kind"] in ACCUSE]


def off(errors: Sequence[float]) -> tuple[str, bool]:
    """Two cells of a row, and whether they are within what is promised."""
    if not errors:
        return "– | –", True
    within = median(errors) <= MEDIAN and max(errors) <= WORST
    return f"{100 * median(errors):.1f} % | {100 * max(errors):.1f} %", within


def row_of(cause: str, seeds: range) -> tuple[str, bool]:
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
    text = f"| {cause} | {first} | {anywhere} | {wrong} | {cells} |"
    return text, within and first >= LEAST_FIRST * len(seeds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=30, help="runs of each cause (%(default)s)")
    parser.add_argument("--only", choices=list(CAUSES))
    args = parser.parse_args()
    seeds, good = range(args.seeds), True
    print(f"| cause | first, of {len(seeds)} | anywhere | wrong | what-if off by, median | worst |")
    print("|---|---|---|---|---|---|", flush=True)
    for cause in CAUSES if args.only is None else [args.only]:
        text, right = row_of(cause, seeds)
        good &= right
        print(text, flush=True)
    if args.only is None:
        false = sum(bool(accused(without_cause(seed))) for seed in range(2 * args.seeds))
        good &= false <= max(MOST_FALSE * 2 * args.seeds, 0)
        alike = sum(bool(accused(with_correlated_noise(seed))) for seed in range(2 * args.seeds))
        print(f"| none, of {2 * args.seeds} runs | – | – | {false} | – | – |")
        print(f"| none, correlated noise, of {2 * args.seeds} runs | – | – | {alike} | – | – |")
        print("\n| loop | 20 % faster | told, of runs | off by, median | worst |\n|---|---|---|---|---|")
        for kind, phase in LOOPS:
            found = [faster(seed, kind, phase) for seed in seeds]
            told = [(saves, truth) for saves, truth in found if saves is not None]
            cells, within = off([abs(saves - truth) / truth for saves, truth in told])
            good &= within
            print(f"| {kind} | {phase} | {len(told)} | {cells} |", flush=True)
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
