"""Calls a second on shared storage in steady state, counted by strace, against the budget.

The syncs of 8 nodes with the projection for 64 and 512; the head of a job of 512 nodes; those who watch
that job. --interval is RAY_LOG_SYNC_FREQUENCY.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.bench.harness import PACKAGE, Run

NEEDS = ("strace",)
QUICK = {"seconds": 6, "interval": 2}
NODES = 8
PROJECTED = (64, 512)
WORKERS = 8  # a node
BUDGET_A_NODE = 1.0  # metadata calls a node and second in steady state
BUDGET_A_WATCHER = 100.0  # a second, at any size
DATA = {  # and what never leaves the machine
    "fcntl",
    "ioctl",
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
HEAD = """
import asyncio, json, sys
from pathlib import Path
from rlprof_ops.collect import job_state
from rlprof_ops.host.background import BackgroundWriter
from rlprof_ops.request import ProfileRequest
from rlprof_ops.supervisor import capture_relay
from rlprof_ops.supervisor.steps import state_relay

run, nodes, workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
path = run / job_state.NAME
state = state_relay.StateFile(path, BackgroundWriter(), ProfileRequest(), "127.0.0.1:1", lambda: 0)

def tell(node, rows, steps):
    state.receive(f"n{node}", state_relay.StateTold(json.dumps([rows, steps])))

async def nobody(asked): pass

async def main():
    names = [f"w{rank}" for rank in range(workers)]
    for node in range(nodes):
        rows = [[name, {"event": "registered", "worker": "policy", "rank": node * workers + rank, "pid": rank,
                        "on_demand": True, "t_ns": 1}] for rank, name in enumerate(names)]
        tell(node, rows, {})
    state.up(nodes)
    tasks = [asyncio.create_task(state.keep()), asyncio.create_task(capture_relay.watch(run, nobody))]
    step = 0
    while True:
        step += 1
        for node in range(nodes):
            tell(node, [], {name: step for name in names})
        await asyncio.sleep(1)

asyncio.run(main())
"""
WAIT = """
import sys
from pathlib import Path
from rlprof_ops.operate.follow import follow
follow("local-1", Path(sys.argv[1]), lambda view: None)
"""
CAPTURE = """
import sys
from pathlib import Path
from rlprof_ops.operate.capture_request import capture
capture(Path(sys.argv[1]), ["*"], None, "torch", None, 1000.0, {}, 1000.0, lambda *_: None)
"""


class Traced:
    """A process under strace; `calls()` are those that name something below `folder`."""

    def __init__(self, argv: list[str], log: Path, folder: Path) -> None:
        self._log, self._folder = log, str(folder)
        line = [
            shutil.which("strace") or "strace",
            "-f",
            "-y",
            "-qq",
            "-e",
            "trace=%file,%desc",
            "-o",
            str(log),
            *argv,
        ]
        env = {**os.environ, "PYTHONPATH": str(PACKAGE), "PATH": str(Path(sys.executable).parent)}
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


def measure(base: Path, nodes_synced: int, seconds: int, interval: int) -> dict[str, Counter[str]]:
    """Calls by what makes them, over `seconds`; a sync's are those of all its nodes."""
    run = base / "shared" / "local-1-logs"
    for name in ("logs", "nodes", "profiles", "control", ".secrets"):
        (run / name).mkdir(parents=True)
    record = {"job": "local-1", "nodes": [f"n{number}" for number in range(PROJECTED[-1])], "request": {}}
    record |= {"driver": {"started_ns": 1}, "end": {"cause": "running"}}
    (run / "run.json").write_text(json.dumps(record))
    nodes = [node_folder(base, number) for number in range(nodes_synced)]
    traced: dict[str, list[Traced]] = {name: [] for name in ("sync", "head", "submit --wait", "capture '*'")}
    try:
        head = [sys.executable, "-c", HEAD, str(run), str(PROJECTED[-1]), str(WORKERS)]
        traced["head"].append(Traced(head, base / "head.strace", run))
        for number, node in enumerate(nodes):
            argv = [sys.executable, "-m", "rlprof_ops.collect.sync", f"--node-dir={node}", f"--run-dir={run}"]
            argv += [f"--node=n{number}", f"--interval={interval}"]
            traced["sync"].append(Traced(argv, base / f"sync{number}.strace", run))
        until = time.monotonic() + 60
        while not (run / "state.json").exists() and time.monotonic() < until:
            time.sleep(0.2)
        traced["submit --wait"].append(
            Traced([sys.executable, "-c", WAIT, str(run)], base / "wait.strace", run)
        )
        traced["capture '*'"].append(
            Traced([sys.executable, "-c", CAPTURE, str(run)], base / "capture.strace", run)
        )
        time.sleep(interval + 8)  # each has made its first look
        before = {kind: sum((each.calls() for each in some), Counter()) for kind, some in traced.items()}
        began = time.monotonic()
        for second in range(seconds):
            work(nodes, second)
            time.sleep(max(0.0, began + second + 1 - time.monotonic()))
        after = {kind: sum((each.calls() for each in some), Counter()) for kind, some in traced.items()}
    finally:
        for some in traced.values():
            for each in some:
                each.end()
    return {kind: after[kind] - before[kind] for kind in traced}


def metadata(calls: Counter[str]) -> int:
    return sum(count for call, count in calls.items() if call not in DATA)


def a_second(kind: str, calls: Counter[str], nodes: int, seconds: int) -> tuple[float, float]:
    """Metadata calls a second, of one node where a sync makes them, and the budget for them."""
    count = metadata(calls) / seconds
    if kind == "sync":
        return count / nodes, BUDGET_A_NODE
    return count, BUDGET_A_NODE if kind == "head" else BUDGET_A_WATCHER


def over_budget(found: dict[str, Counter[str]], nodes: int, seconds: int) -> list[str]:
    """What makes more calls than it may, in words; also what made none at all, which cannot be."""
    wrong = [f"{kind} made no call: it did not run" for kind, calls in found.items() if not calls]
    for kind, calls in found.items():
        count, most = a_second(kind, calls, nodes, seconds)
        wrong += [f"{kind}: {count:.2f} a second, budget {most}"] if count > most else []
    return wrong


def bench(run: Run, *, seconds: int = 60, interval: int = 30) -> None:
    found = measure(run.folder.resolve(), NODES, seconds, interval)
    run.say(f"calls a second on shared storage over {seconds} s (metadata calls in brackets)")
    run.head("", *(f"{count} nodes    " for count in (NODES, *PROJECTED)), "kinds")
    for kind, calls in found.items():
        cells = []
        for count in (NODES, *PROJECTED):  # all but the sync are of a job of 512 nodes
            scale = (count / NODES if kind == "sync" else 1.0) / seconds
            shown = f"{sum(calls.values()) * scale:.1f} ({metadata(calls) * scale:.1f})"
            cells.append(shown if kind == "sync" or count == PROJECTED[-1] else "")
        run.row(
            kind, *cells, ", ".join(f"{call} {count / seconds:.2f}" for call, count in calls.most_common(6))
        )
    for kind, calls in found.items():
        run.expect(calls, f"{kind} ran")
        run.limit(f"metadata calls of {kind}", *a_second(kind, calls, NODES, seconds), "a second")
