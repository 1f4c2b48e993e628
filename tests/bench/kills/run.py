"""How many finished windows are lost when our processes get SIGKILL at random moments: each of them, the
supervisors too, twenty times.

Rerun, as root with Slurm and nsys: python tests/bench/kills/run.py [--each 20] [--seed 1] [--lanes 2]
Real jobs on the sandbox, two nodes, six windows each of nsight and torch on two workers, two jobs at a time.
A window counts as lost when it had ended and its report is not in the run folder, readable, after the job.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "python"), str(ROOT)]

from tests.faults.job import AgentLost  # noqa: E402
from tests.faults.killing import KINDS, STEPS, Killed, kill_helpers, lost  # noqa: E402
from tests.sandbox import Sandbox  # noqa: E402

_MOST_OF_A_KIND = 4  # in one job, of those that live for a moment


class Tally:
    """What was killed and lost so far, over all lanes."""

    def __init__(self, each: int) -> None:
        self.each = each
        self.killed: Counter[str] = Counter()
        self.jobs = self.windows = 0
        self.lost: list[str] = []
        self.lock = threading.Lock()

    def enough(self) -> frozenset[str]:
        return frozenset(kind for kind in KINDS if self.killed[kind] >= self.each)

    def take(self, name: str, found: Killed, over: int) -> None:
        with self.lock:
            self.killed.update(kind for kind, _ in found.kills)
            gone = lost(found, over)
            self.jobs += 1
            self.windows += sum(each.state in ("ok", "recovered") for each in found.manifest.captures)
            self.lost += [f"{name} (job {found.job.id}): {each}; killed: {found.kills}" for each in gone]
            unexplained = [
                each.id for each in found.manifest.captures if each.state != "ok" and not each.reason
            ]
            self.lost += [f"{name}: no reason for {each}" for each in unexplained]
            says = f"{found.state.state} {found.state.exit_code}"
            if says != "COMPLETED 0":
                self.lost.append(f"{name}: training did not go on: {says}; killed: {found.kills}")
            kinds = dict(Counter(kind for kind, _ in found.kills))
            print(f"{name}: {says}, {len(gone)} lost; killed {kinds}", file=sys.stderr, flush=True)


def lane(tally: Tally, numbers: Iterator[int], seed: int, until: float) -> None:
    with Sandbox.up(nodes=3, kill_wait=30) as sandbox:
        while time.monotonic() < until:
            with tally.lock:
                number, enough = next(numbers), tally.enough()
            if len(enough) == len(KINDS):
                return
            try:
                found = kill_helpers(sandbox, f"helpers-{number}", seed + number, enough, _MOST_OF_A_KIND)
                tally.take(f"helpers {number}", found, STEPS)
            except AgentLost:
                print(f"job {number}: nsys lost its agent three times", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60, help="no job begins after these")
    asked = parser.parse_args()
    tally, numbers = Tally(asked.each), itertools.count()
    until = time.monotonic() + 60 * asked.minutes
    with ThreadPoolExecutor(asked.lanes) as pool:
        for done in [pool.submit(lane, tally, numbers, asked.seed, until) for _ in range(asked.lanes)]:
            done.result()
    for kind, count in sorted(tally.killed.items()):
        print(f"{kind:<24}{count:>6} killed")
    print(f"{tally.jobs} jobs, {tally.windows} windows home, {len(tally.lost)} lost")
    for line in tally.lost:
        print(f"LOST {line}")
    return 1 if tally.lost or any(tally.killed[kind] < asked.each for kind in KINDS) else 0


if __name__ == "__main__":
    sys.exit(main())
