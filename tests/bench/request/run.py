"""What importing the request costs a training process, and how long a plan of a large run takes.

Rerun: python tests/bench/request/run.py [--rounds 15] Each round is a process of its own; the other side is
the same Python doing nothing, the difference is what is claimed. The large run: 64 nodes x 8 ranks of 5
workers with 20 windows each, 51,200 reports.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LIMIT_IMPORT_S, LIMIT_PLAN_S = 0.050, 0.5
WORLD = ",".join(f"worker{i}=512" for i in range(5))
REQUEST = 'captures: [{workers: "*", steps: "1:41:2"}]\n'


def seconds(*arguments: str) -> tuple[float, float]:
    """Wall and CPU time of one process; they differ by what else the machine does."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
    )
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "request.yaml")
        path.write_text(REQUEST)
        sides = {
            "python, nothing": ("-c", "pass"),
            "import rlprof_ops.request": ("-c", "import rlprof_ops.request"),
            "rlprof plan, 51,200 reports": ("-m", "rlprof_ops", "plan", str(path), "--world", WORLD),
            "rlprof plan --json": ("-m", "rlprof_ops", "plan", str(path), "--world", WORLD, "--json"),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(rounds + 1):  # the first fills the caches
            for name, arguments in sides.items():
                times[name].append(seconds(*arguments))
    print(f"{'':32}{'wall, median ms':>17}{'least':>8}{'CPU, median ms':>17}{'least':>8}   ({rounds} rounds)")
    for name, found in times.items():
        walls, cpus = zip(*found[1:], strict=True)
        print(
            f"{name:32}{statistics.median(walls) * 1e3:17.1f}{min(walls) * 1e3:8.1f}{statistics.median(cpus) * 1e3:17.1f}{min(cpus) * 1e3:8.1f}"
        )
    # One thread that waits for nothing: CPU time is what it takes on a machine that does nothing else.
    nothing, imported, planned, _ = (min(cpu for _, cpu in found[1:]) for found in times.values())
    ok = imported - nothing < LIMIT_IMPORT_S and planned < LIMIT_PLAN_S
    print(
        f"the import costs {(imported - nothing) * 1e3:.1f} ms of CPU, {imported / nothing:.2f} times nothing"
        f" (limit {LIMIT_IMPORT_S * 1e3:.0f} ms)"
    )
    print(
        f"the plan takes {planned * 1e3:.0f} ms of CPU with its process (limit {LIMIT_PLAN_S * 1e3:.0f} ms)"
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
