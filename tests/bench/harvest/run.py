"""Harvest of simulated jobs with 64, 512 and 4,096 reports: time per report and peak memory, first run and
second.

Rerun: python tests/bench/harvest/run.py [--sizes 64,512,4096] [--kib 64] Each run is a process of its own;
the reports are frames of nsys reports, so that reading and hashing them is real and looking inside with nsys
(about a second a report, bounded by --inside) is not part of it. The other side is what a person does without
a manifest: `find` + `sha256sum` of the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "python"), str(ROOT)]

from tests.collect.runfolder import NSYS_FRAME, RunFolder  # noqa: E402

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


def once(folder: Path) -> None:
    """The child: harvest, print seconds and peak memory."""
    from rlprof_ops.collect.harvest.run_harvest import harvest

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    manifest = harvest(folder, content_budget_s=0)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps([seconds, peak / 1024, (peak - before) / 1024, manifest.complete, len(manifest.captures)])
    )


def child(folder: Path) -> list:
    done = subprocess.run(
        [sys.executable, __file__, "--once", str(folder)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="64,512,4096")
    parser.add_argument("--kib", type=int, default=64, help="size of each report")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--once", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        once(Path(arguments.once))
        return
    print(
        f"{'reports':>8}{'first s':>9}{'ms each':>9}{'again s':>9}{'peak MiB':>10}{'of it ours':>11}{'find+sha256sum s':>18}{'ratio':>7}"
    )
    with tempfile.TemporaryDirectory(dir=arguments.folder) as base:
        for size in map(int, arguments.sizes.split(",")):
            folder = make(Path(base), size, arguments.kib)
            seconds, peak, own, complete, captures = child(folder)
            assert complete and captures == size, (complete, captures)
            again = child(folder)[0]
            started = time.perf_counter()
            subprocess.run(
                [
                    "bash",
                    "-c",
                    'find "$1/profiles" -type f -print0 | xargs -0 sha256sum >/dev/null',
                    "x",
                    folder,
                ],
                check=True,
            )
            theirs = time.perf_counter() - started
            print(
                f"{size:>8}{seconds:>9.2f}{seconds / size * 1e3:>9.2f}{again:>9.2f}{peak:>10.0f}{own:>11.1f}{theirs:>18.2f}{seconds / theirs:>7.2f}"
            )


if __name__ == "__main__":
    main()
