"""Calls a second on shared storage, counted by strace: the syncs of 8 nodes and the head's look for captures
on demand, in steady state, with the projection for 64 and 512 nodes against the budget.

    .venv/bin/python tests/bench/metadata/run.py [--seconds 60] [--interval 30]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
NODES = 8
PROJECTED = (64, 512)
BUDGET_A_NODE = 1.0  # metadata calls a node and second in steady state
DATA = {
    "read",
    "pread64",
    "readv",
    "preadv",
    "write",
    "pwrite64",
    "writev",
    "sendfile",
    "lseek",
    "close",
    "fsync",
}
_CALL = re.compile(r"^(?:\[pid\s+\d+\]\s+|\d+\s+)?(?P<call>\w+)\(")
WATCH = """
import asyncio, sys
from pathlib import Path
from rlprof_ops.supervisor import capture_relay
async def nobody(asked): pass
asyncio.run(capture_relay.watch(Path(sys.argv[1]), nobody))
"""


class Traced:
    """A process under strace; `calls()` are those that name something below `folder`."""

    def __init__(self, argv: list[str], log: Path, folder: Path) -> None:
        self._log, self._folder = log, str(folder)
        line = ["strace", "-f", "-y", "-qq", "-e", "trace=%file,%desc", "-o", str(log), *argv]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        self._process = subprocess.Popen(
            line, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def calls(self) -> Counter[str]:
        found: Counter[str] = Counter()
        with open(self._log, errors="replace") as lines:
            for line in lines:
                match = _CALL.match(line)
                if match and self._folder in line:
                    found[match["call"]] += 1
        return found

    def end(self) -> None:
        """At once: what it would do at its end is no steady state."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def node_folder(base: Path, number: int) -> Path:
    """A node as in a running job: 8 workers with events and steps, Ray's logs."""
    node = base / f"node{number}"
    logs = node / "ray/session_2026-01-01_00-00-00/logs"
    for folder in (logs, node / "events", node / "live", node / "profiles", node / "logs", node / "tmp"):
        folder.mkdir(parents=True)
    for rank in range(8):
        (node / f"events/w_rank{rank}_n{number}_{rank}.jsonl").write_text('{"event": "registered"}\n')
        (node / f"events/w_rank{rank}_n{number}_{rank}.step").write_bytes(bytes(8))
    for name in ("raylet.out", "debug_state.txt", *(f"worker-{rank}.out" for rank in range(8))):
        (logs / name).write_text("a line\n")
    if number == 0:
        (node / "live/driver.log").write_text("step 1\n")
    return node


def work(nodes: list[Path], second: int) -> None:
    """What a training job does to a node in a second: a step, a line of each worker, the raylet's state."""
    for node in nodes:
        logs = next((node / "ray").glob("session_*")) / "logs"
        for path in (node / "events").glob("*.step"):
            path.write_bytes(second.to_bytes(8, "little"))
        for path in logs.glob("worker-*.out"):
            with open(path, "a") as file:
                file.write(f"second {second}\n")
        (logs / "debug_state.txt").write_text(f"state {second}\n")
    with open(nodes[0] / "live/driver.log", "a") as file:
        file.write(f"step {second}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--interval", type=int, default=30, help="RAY_LOG_SYNC_FREQUENCY")
    parser.add_argument("--check", action="store_true", help="exit 1 when a budget is exceeded")
    asked = parser.parse_args()
    if shutil.which("strace") is None:
        print("no strace here")
        return 2
    with tempfile.TemporaryDirectory() as text:
        base = Path(text).resolve()
        run = base / "shared"
        for name in ("logs", "nodes", "profiles", "control"):
            (run / name).mkdir(parents=True)
        nodes = [node_folder(base, number) for number in range(NODES)]
        traced: dict[str, list[Traced]] = {"sync": [], "captures on demand": []}
        for number, node in enumerate(nodes):
            argv = [sys.executable, "-m", "rlprof_ops.collect.sync", f"--node-dir={node}", f"--run-dir={run}"]
            argv += [f"--node=n{number}", f"--interval={asked.interval}"]
            traced["sync"].append(Traced(argv, base / f"sync{number}", run))
        watch = [sys.executable, "-c", WATCH, str(run)]
        traced["captures on demand"].append(Traced(watch, base / "watch", run))
        try:
            time.sleep(asked.interval + 8)  # each has made its first pass
            before = {kind: sum((each.calls() for each in some), Counter()) for kind, some in traced.items()}
            for second in range(asked.seconds):
                work(nodes, second)
                time.sleep(1)
            after = {kind: sum((each.calls() for each in some), Counter()) for kind, some in traced.items()}
        finally:
            for some in traced.values():
                for each in some:
                    each.end()
    found = {kind: after[kind] - before[kind] for kind in traced}
    return report(found, asked.seconds, asked.check)


def report(found: dict[str, Counter[str]], seconds: int, check: bool) -> int:
    print(f"calls a second on shared storage, {NODES} nodes over {seconds} s (metadata calls in brackets)")
    names = "".join(f"{count:>18}" for count in (NODES, *PROJECTED))
    print(f"{'':22}{names}   kinds")
    a_node = 0.0
    for kind, calls in found.items():
        every = sum(calls.values()) / seconds
        metadata = sum(count for call, count in calls.items() if call not in DATA) / seconds
        per_job = kind != "sync"  # one process of a job, however many nodes
        cells = ""
        for count in (NODES, *PROJECTED):
            scale = 1.0 if per_job else count / NODES
            cells += f"{f'{every * scale:.1f} ({metadata * scale:.1f})':>18}"
        most = ", ".join(f"{call} {count / seconds:.2f}" for call, count in calls.most_common(6))
        print(f"{kind:22}{cells}   {most}")
        if not per_job:
            a_node = metadata / NODES
    print(f"metadata calls a node and second: {a_node:.2f}, budget {BUDGET_A_NODE:.2f}")
    return 1 if check and a_node > BUDGET_A_NODE else 0


if __name__ == "__main__":
    sys.exit(main())
