"""How many finished windows are lost when our processes get SIGKILL at random moments.

Each of them gets it --each times, the supervisors too. Real jobs on the sandbox, two nodes, six windows
each of nsight and torch on two workers, two jobs at a time; the supervisors are among those that are
killed. No job begins after --minutes. A window counts as lost when it had ended and its report is not in
the run folder, readable, after the job.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.bench.harness import Run
from tests.faults.job import AgentLost
from tests.faults.killing import KINDS, STEPS, Killed, kill_helpers, lost
from tests.sandbox import Sandbox

NEEDS = ("slurm", "nsys")
QUICK = {"each": 1, "lanes": 1, "minutes": 2.0}
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


def bench(run: Run, *, each: int = 20, seed: int = 1, lanes: int = 2, minutes: float = 60) -> None:
    tally, numbers = Tally(each), itertools.count()
    until = time.monotonic() + 60 * minutes
    with ThreadPoolExecutor(lanes) as pool:
        for done in [pool.submit(lane, tally, numbers, seed, until) for _ in range(lanes)]:
            done.result()
    run.head("process" + " " * 17, "killed")
    for kind in sorted(KINDS):
        run.row(kind, tally.killed[kind])
    run.limit(f"lost of {tally.windows} windows home in {tally.jobs} jobs", len(tally.lost), 0)
    for line in tally.lost:
        run.say(f"LOST {line}")
    rare = [kind for kind in KINDS if tally.killed[kind] < each]
    run.expect(not rare, f"each was killed {each} times{' but ' if rare else ''}{', '.join(rare)}")
