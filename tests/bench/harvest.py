"""Harvest of simulated jobs: time per report and peak memory, first run and second.

Each run is a process of its own; the reports are frames of nsys reports, so that reading and hashing them
is real and looking inside with nsys (about a second a report, bounded by --inside) is not part of it. The
other side is what a person does without a manifest: `find` + `sha256sum` of the same files.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.bench.harness import Run, spend
from tests.collect.runfolder import NSYS_FRAME, RunFolder

QUICK = {"sizes": (64,), "kib": 4}
WINDOWS = 8


def make(base: Path, reports: int, kib: int) -> Path:
    """A job of reports/8 ranks on up to 64 nodes, 8 windows a rank."""
    steps = ",".join(str(2 * window + 3) for window in range(WINDOWS))
    nodes = [f"n{number}" for number in range(min(64, max(1, reports // WINDOWS)))]
    job = RunFolder(
        base / f"{reports}-logs",
        {"captures": [{"backend": "nsight", "workers": ["policy_worker"], "steps": steps}]},
        nodes=nodes,
    )
    body = NSYS_FRAME[:-5] + os.urandom(kib << 10) + b"[END]"
    for rank in range(reports // WINDOWS):
        node = nodes[rank % len(nodes)]
        windows = [("closed", "nsight", 2 * window + 3, 2 * window + 4, None) for window in range(WINDOWS)]
        job.worker("policy_worker", rank, node, pid=1000 + rank, windows=windows, last_step=20)
        for window in range(WINDOWS):
            job.report(
                "nsight",
                "policy_worker",
                rank,
                2 * window + 3,
                2 * window + 4,
                node=node,
                pid=1000 + rank,
                data=body,
            )
    return job.write()


HARVEST = """
import json, resource, sys, time
from pathlib import Path
from rlprof_ops.collect.harvest.run_harvest import harvest

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before, began = peak_mib(), time.perf_counter()
manifest = harvest(Path(sys.argv[1]), content_budget_s=0)
seconds, peak = time.perf_counter() - began, peak_mib()
print(json.dumps([seconds, peak, peak - before, manifest.complete, len(manifest.captures)]))
"""
BY_HAND = 'find "$1/profiles" -type f -print0 | xargs -0 sha256sum >/dev/null'


def harvested(folder: Path) -> list[float]:
    return json.loads(spend([sys.executable, "-c", HARVEST, folder]).output.splitlines()[-1])


def bench(run: Run, *, sizes: tuple[int, ...] = (64, 512, 4096), kib: int = 64) -> None:
    run.head(
        "reports", "first s", "ms each", "again s", "peak MiB", "of it ours", "find+sha256sum s", "ratio"
    )
    for size in sizes:
        folder = make(run.folder, size, kib)
        seconds, peak, own, complete, captures = harvested(folder)
        assert complete and captures == size, (complete, captures)
        again = harvested(folder)[0]
        theirs = spend(["bash", "-c", BY_HAND, "x", folder]).wall_s
        cells = (f"{seconds:.2f}", f"{seconds / size * 1e3:.2f}", f"{again:.2f}", f"{peak:.0f}")
        run.row(size, *cells, f"{own:.1f}", f"{theirs:.2f}", f"{seconds / theirs:.2f}")
