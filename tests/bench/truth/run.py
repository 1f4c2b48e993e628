"""What the report says of the job of a published study, beside what the study's own simulator says.

--steps of the 44 that the study has. Needs the study's archive: `straggler_analysis-*.tar.xz` in
$RLPROF_UPSTREAM, else in ../shared/upstream. The slow worker has to be the first finding, its cost off by
at most a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.analyze.as_data import answer_of
from tests.bench.harness import Run
from tests.bench.truth import study

NEEDS = ("study",)
QUICK = {"steps": 4}
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


def bench(run: Run, *, steps: int | None = None) -> None:
    first, rows = compare(run.folder, steps)
    run.head("quantity" + " " * 18, "report", "study", "off by")
    for row in rows:
        run.row(row.what, f"{row.ours:.2f}", f"{row.theirs:.2f}", f"{100 * row.off:+.1f} %")
    run.expect("rank 0 " in first, f"first finding: {first}")
    run.limit("the cost is off by", 100 * abs(rows[0].off), 100 * LIMIT, "%")
