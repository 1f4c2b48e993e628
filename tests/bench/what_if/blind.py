"""A blind reading: runs of the demo, each with one planted cause; does the first finding name it?

    python tests/bench/what_if/blind.py [--seeds 10] [--first 0] [--steps 6] [--only tail]

Nothing of the report knows which cause was planted. The exit code is 1 if any first finding is another.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[3]), str(Path(__file__).resolve().parents[3] / "python")]

from tests.bench.what_if.runs import demo

USUAL = "--generation-workers 2 --least-ms generation=400"
CAUSES = {
    "straggler": f"{USUAL} --slow-rank 1 --slow-ms 600",
    "tail": f"{USUAL} --tail-ms 800",
    "weight_sync": f"{USUAL} --least-ms weight_sync=800",
}


def named(kind: str, answer: dict[str, Any]) -> bool:
    first = answer["findings"][0]
    if kind == "straggler":
        return bool(
            first["kind"] == kind
            and first["phase"] == "train"
            and answer["ranks"][first["rank"]]["rank"] == 1
        )
    return bool(first["kind"] == kind)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--steps", type=int, default=6, help="profiled steps of each run (%(default)s)")
    parser.add_argument("--only", choices=list(CAUSES))
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.first, args.first + args.seeds):
            for kind, options in CAUSES.items():
                if args.only in (None, kind):
                    answer = demo(Path(folder) / "run", options.split(), seed, args.steps).answer
                    hit = named(kind, answer)
                    wrong += not hit
                    said = "named" if hit else "NOT named"
                    print(
                        f"seed {seed}, load {os.getloadavg()[0]:4.1f}, {kind:11} {said}:"
                        f" {answer['findings'][0]['text']}",
                        flush=True,
                    )
    print(f"{wrong} not named")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
