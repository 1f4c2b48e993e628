"""What a report says a change would save, against the same demo run with the change really made.

Each row runs the demo twice on this machine with torch windows: once as it is, from whose report the
prediction comes, and once changed by the demo's own options. Measured is the difference of the mean step by
the demo's own clock. Rows that share a run share it here too. --steps: the profiled ones of each run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from tests.bench.harness import Run
from tests.bench.what_if.runs import DemoRun, demo

NEEDS = ("ray", "torch")
QUICK = {"only": "one_more", "steps": 3}
LIMIT = 0.10  # of the change


@dataclass(frozen=True)
class Row:
    kind: str
    phase: str
    before: str
    after: str


USUAL = "--generation-workers 2 --least-ms train=800 --least-ms weight_sync=400"
ROWS = (
    Row("faster", "generation", f"{USUAL} --least-ms generation=1500", f"{USUAL} --least-ms generation=1200"),
    Row("overlapped", "weight_sync", f"{USUAL} --least-ms generation=1500",
        f"{USUAL} --least-ms generation=1500 --overlap-sync"),
    Row("even", "generation", f"{USUAL} --least-ms generation=1500 --tail-ms 900",
        f"{USUAL} --least-ms generation=1500"),
    Row("like_peers", "train", "--slow-rank 1 --slow-ms 600", ""),
    Row("one_more", "generation", "--least-ms generation=700",
        "--least-ms generation=700 --generation-workers 2"),
)  # fmt: skip


def bench(
    run: Run,
    *,
    only: Literal["faster", "overlapped", "even", "like_peers", "one_more"] | None = None,
    steps: int = 8,
) -> None:
    @cache
    def made(options: str) -> DemoRun:
        return demo(run.folder / f"run{made.cache_info().currsize}", options.split(), steps=steps)

    worst = 0.0
    run.head("change", "step before", "predicted", "measured", "off by, of the change")
    for row in ROWS:
        if only in (None, row.kind):
            before, after = made(row.before), made(row.after)
            told = [w for w in before.answer["what_if"] if (w["kind"], w["phase"]) == (row.kind, row.phase)]
            saves = max((w["saves_ns"] for w in told), default=0)
            text = told[0]["change"] if told else f"{row.kind} {row.phase}: not predicted"
            measured = before.step_ns - after.step_ns
            off = abs(saves - measured) / max(abs(measured), 1)
            worst = max(worst, off)
            times = [f"{ns / 1e6:.0f} ms" for ns in (before.step_ns, saves, measured)]
            run.row(text, *times, f"{100 * off:.1f} %")
    run.limit("the worst is off by", 100 * worst, 100 * LIMIT, "% of the change")
