"""What a report says a change would save, against the same demo run with the change really made.

    python tests/bench/what_if/run.py [--only faster] [--steps 8] [--keep FOLDER]

Each row runs the demo twice on this machine with torch windows: once as it is, from whose report the
prediction comes, and once changed by the demo's own options. Measured is the difference of the mean step by
the demo's own clock. Rows that share a run share it here too.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3]), str(Path(__file__).resolve().parents[3] / "python")]

from tests.bench.what_if.runs import Run, demo

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=[row.kind for row in ROWS])
    parser.add_argument("--steps", type=int, default=8, help="profiled steps of each run (%(default)s)")
    parser.add_argument("--keep", type=Path, help="folder for the runs' reports")
    args = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {args.steps} profiled steps a run\n")
    print("| change | step before | predicted | measured | off by, of the change |")
    print("|---|---|---|---|---|")
    made: dict[str, Run] = {}
    worst = 0.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)

        def run(options: str) -> Run:
            if options not in made:
                made[options] = demo(folder / f"run{len(made)}", options.split(), steps=args.steps)
            return made[options]

        for row in ROWS:
            if args.only in (None, row.kind):
                before, after = run(row.before), run(row.after)
                told = [
                    w for w in before.answer["what_if"] if (w["kind"], w["phase"]) == (row.kind, row.phase)
                ]
                saves = max((w["saves_ns"] for w in told), default=0)
                text = told[0]["change"] if told else f"{row.kind} {row.phase}: not predicted"
                measured = before.step_ns - after.step_ns
                off = abs(saves - measured) / max(abs(measured), 1)
                worst = max(worst, off)
                print(
                    f"| {text} | {before.step_ns / 1e6:.0f} ms | {saves / 1e6:.0f} ms |"
                    f" {measured / 1e6:.0f} ms | {100 * off:.1f} % |",
                    flush=True,
                )
    print(f"\nload {os.getloadavg()[0]:.1f}; worst {100 * worst:.1f} %, limit {100 * LIMIT:.0f} %")
    raise SystemExit(worst > LIMIT)


if __name__ == "__main__":
    main()
