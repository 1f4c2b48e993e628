"""What the report says of the job of a published study, beside what the study's own simulator says.

    python tests/bench/truth/run.py [--steps 44]

Needs the study's archive: `straggler_analysis-*.tar.xz` in $RLPROF_UPSTREAM, else in ../shared/upstream. The
exit code is 1 if the slow worker is not the first finding, or its cost is off by more than a tenth.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3]), str(Path(__file__).resolve().parents[3] / "python")]

from tests.analyze.as_data import answer_of
from tests.bench.truth import study

LIMIT = 0.10  # of what the slow worker costs


@dataclass(frozen=True)
class Compared:
    """One quantity, as the report and as the study have it."""

    what: str
    ours: float
    theirs: float

    @property
    def off(self) -> float:
        return self.ours / self.theirs - 1


def compare(folder: Path, most_steps: int | None = None) -> tuple[str, list[Compared]]:
    """The first finding, and slow-downs: of the slow worker, its stage and pipeline, each kind of computing.

    The study's slow-down by a part is the step with that part as it was over a step with all as it should be.
    """
    whole = answer_of(study.write_study(folder / "whole", most_steps), jobs=1, cache=False)
    kinds = answer_of(study.write_study(folder / "kinds", most_steps, by_kind=True), jobs=1, cache=False)
    first = whole["findings"][0]
    told, mended = study.said("result"), study.said("mw")
    steps_s = [row["duration_ns"] / 1e9 for row in whole["steps"]]
    step_s, saves_s = sum(steps_s) / len(steps_s), (first["saves_ns"] or 0) / 1e9
    slow_down = step_s / (step_s - saves_s)
    excess = {row["phase"]: row["excess_ns"] for row in kinds["stragglers"] if row["rank"] == first["rank"]}
    by_kind = told["blocking_decompose_by_optype"]
    more = sum(by_kind[kind] - 1 for kind in excess)
    rows = [
        Compared("rank 0 costs, s a step", saves_s, mended["tori"] - mended["trem"]),
        Compared("slow-down by its stage", slow_down, told["blocking_decompose_by_stage"]["0"]),
        Compared("slow-down by its pipeline", slow_down, told["blocking_decompose_by_dp_rank"]["0"]),
        *(
            Compared(f"share of {kind} in it", ns / sum(excess.values()), (by_kind[kind] - 1) / more)
            for kind, ns in excess.items()
        ),
    ]
    return first["text"], rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, help="of the 44 that the study has (all)")
    args = parser.parse_args()
    if why := study.missing():
        print(f"left out: {why}")
        return
    with tempfile.TemporaryDirectory() as folder:
        first, rows = compare(Path(folder), args.steps)
    print(f"first finding: {first}\n\n| quantity | report | study | off by |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.ours:.2f} | {row.theirs:.2f} | {100 * row.off:+.1f} % |")
    raise SystemExit("rank 0 " not in first or abs(rows[0].off) > LIMIT)


if __name__ == "__main__":
    main()
