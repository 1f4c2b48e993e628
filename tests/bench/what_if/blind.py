"""A blind reading: runs of the demo, each with one planted cause; does the first finding name it?

Nothing of the report knows which cause was planted. --steps: the profiled ones of each run.
"""

from __future__ import annotations

import os
from typing import Any, Literal

from tests.bench.harness import Run
from tests.bench.what_if.runs import demo

NEEDS = ("ray", "torch")
QUICK = {"seeds": 1, "only": "tail"}
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


def bench(
    run: Run,
    *,
    seeds: int = 10,
    first: int = 0,
    steps: int = 6,
    only: Literal["straggler", "tail", "weight_sync"] | None = None,
) -> None:
    run.head("seed", "load", "planted    ", "first finding")
    for seed in range(first, first + seeds):
        for kind, options in CAUSES.items():
            if only in (None, kind):
                answer = demo(run.folder / "run", options.split(), seed, steps).answer
                run.row(seed, f"{os.getloadavg()[0]:.1f}", kind, answer["findings"][0]["text"])
                run.expect(named(kind, answer), f"seed {seed}: {kind} is named first")
