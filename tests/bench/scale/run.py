"""A job of up to 512 nodes on this machine: what its start, a step, its sync, its drain and its harvest take.

And what they cost the head. One process of our supervisor and one of our sync a node (job.py says what is
real), all on the CPUs of this machine. So the times of the whole are upper bounds: a cluster's nodes do
their part each on its own. The head has precedence (nice -15); what it uses of a CPU is what one head would
use for so many nodes. About 30 MiB a node in --folder; each node sends eight reports of --kib.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.harness import Run, environment
from tests.bench.scale.job import RANKS, WINDOW, WORKER, report_of

from rlprof_ops.host.ports import free_pair
from rlprof_ops.job.folders import RunFolder

HERE = Path(__file__).resolve().parent
NEEDS = ("root",)
QUICK = {"sizes": (4,), "steps": 5, "step_seconds": 0.2, "kib": 4}
START_S, STEPS_S, DRAIN_S, HARVEST_S = 900.0, 600.0, 900.0, 600.0
_TICKS = os.sysconf("SC_CLK_TCK")


class GaveUp(RuntimeError):
    """A part of the simulated job did not end in its time."""


@dataclass(frozen=True)
class Found:
    """One simulated job. Seconds, unless a name says otherwise; `cpu` is the head's alone."""

    nodes: int
    start_s: float
    start_cpu_s: float
    steps_cpu: float
    tell_ms: float
    late_ms: float
    waited_ms: float
    home_s: float
    drain_s: float
    drain_cpu_s: float
    harvest_s: float
    reports: int
    head_mib: float


class Process:
    """The head, or the processes of all other nodes, ended with everything below it."""

    def __init__(self, what: str, job: Path, base: Path, *between: int, nice: int = 0) -> None:
        self._log = base / "output" / f"{what}.log"
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.scale.job", what, str(job), *map(str, between)],
                env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, nice),
            )  # fmt: skip

    def tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])

    def end(self) -> None:
        """With a PID namespace's first process all its processes end."""
        for pid in [self.process.pid, *_below(self.process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def _below(pid: int) -> list[int]:
    """All processes that descend from `pid`, the nearest first."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(0), [])
        found += children
        left += children
    return found


def _cpu_s(pid: int) -> float:
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _peak_mib(pid: int) -> float:
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _arrived(run: Path) -> int:
    return sum(1 for _ in (run / "profiles").glob("*/*/*/*.gz"))


def simulate(base: Path, nodes: int, steps: int, step_s: float, kib: int) -> Found:
    """Run one job of `nodes` nodes below `base`.

    Raises GaveUp when a part of it does not end in its time.
    """
    for name in ("nodes", "late", "output"):
        (base / name).mkdir()
    run = RunFolder(base / f"{nodes}-logs")
    run.create()
    run.write_token()
    (base / "report").write_bytes(report_of(kib))
    request = {
        "captures": [{"backend": "torch", "workers": [WORKER], "steps": f"{WINDOW.start}:{WINDOW.stop}"}]
    }
    gcs_port, control_port = free_pair(os.getpid())
    names = [f"node{number:04}" for number in range(nodes)]
    job = {
        "name": str(nodes), "base": str(base), "run": str(run.path), "nodes": names,
        "report": str(base / "report"),
        "gcs_port": gcs_port, "control_port": control_port, "began": time.time(),
        "knobs": {
            "COMMAND": f"{sys.executable} {HERE / 'driver.py'} {base} {steps} {step_s}",
            "SLURM_SUBMIT_DIR": str(base), "RLPROF_REQUEST_JSON": json.dumps(request),
            "RLPROF_READY_SECONDS": str(int(START_S)), "RLPROF_DRAIN_SECONDS": str(int(DRAIN_S)),
            "RLPROF_HARVEST_SECONDS": str(int(HARVEST_S)), "RLPROF_REPORT_SECONDS": "0",
            "RAY_LOG_SYNC_FREQUENCY": "10", "RAY_AUTH_MODE": "disabled", "GPUS_PER_NODE": "8",
        },
    }  # fmt: skip
    path = base / "job.json"
    path.write_text(json.dumps(job))
    began, last = time.time(), ""
    head = Process("HEAD", path, base, nice=-15)
    others = Process("NODES", path, base, 1, nodes)

    samples: list[tuple[float, float, float]] = []
    supervisor, home = 0, 0.0
    limits = {"driver_began": START_S, "driver_ended": STEPS_S, "drained": DRAIN_S, "": HARVEST_S}
    since = time.monotonic()
    try:
        while head.process.poll() is None:
            supervisor = supervisor or next(iter(_below(head.process.pid)), 0)
            if supervisor:
                with contextlib.suppress(OSError, StopIteration):  # it has ended meanwhile
                    samples.append((time.time(), _cpu_s(supervisor), _peak_mib(supervisor)))
            waits_for = next(name for name in limits if not name or not (base / name).exists())
            since = time.monotonic() if waits_for != last else since
            last = waits_for
            if time.monotonic() > since + limits[waits_for]:
                raise GaveUp(
                    f"{nodes} nodes: no {waits_for or 'end'} in {limits[waits_for]:.0f} s\n{head.tail()}"
                )
            if not home and (base / "window_ended").exists() and _arrived(run.path) == RANKS * nodes:
                home = time.time()
            time.sleep(0.1)
        ended = time.time()
        if head.process.returncode:
            raise GaveUp(f"{nodes} nodes: the head ended with {head.process.returncode}:\n{head.tail()}")
        others.process.wait(60)
    finally:
        head.end()
        others.end()
    up, window, stopped, drained = (
        (base / name).stat().st_mtime for name in ("driver_began", "window_ended", "driver_ended", "drained")
    )

    def cpu_s(until: float) -> float:
        return max((cpu for at, cpu, _ in samples if at <= until), default=0.0)

    manifest = json.loads((run.path / "manifest.json").read_text())
    ok = sum(capture["state"] == "ok" for capture in manifest["captures"])
    delays = [json.loads(each.read_text()) for each in (base / "late").iterdir()]
    late = [max(each[str(step)] for each in delays) for step in range(1, steps + 1)]
    told = json.loads((base / "told.json").read_text())["StepBegan"]
    waited = json.loads((base / "waited.json").read_text())
    return Found(
        nodes, up - began, cpu_s(up), (cpu_s(stopped) - cpu_s(up)) / (stopped - up),
        statistics.median(told) / 1e6, statistics.median(late) / 1e6, statistics.median(waited) * 1e3,
        (home or drained) - window, drained - stopped, cpu_s(drained) - cpu_s(stopped), ended - drained, ok,
        max(mib for *_, mib in samples),
    )  # fmt: skip


COLUMNS = {
    "nodes": "{nodes}",
    "start": "{start_s:.1f} s",
    "head's CPU time in it": "{start_cpu_s:.1f} s",
    "step sent to all nodes in": "{tell_ms:.1f} ms",
    "last node knows it after": "{late_ms:.0f} ms",
    "every window open after": "{waited_ms:.0f} ms",
    "head's CPU use in training": "{steps_cpu:.0%}",
    "reports copied after the window": "{home_s:.0f} s",
    "drain": "{drain_s:.1f} s",
    "head's CPU time in the drain": "{drain_cpu_s:.1f} s",
    "harvest": "{harvest_s:.1f} s",
    "reports ok": "{reports}",
    "memory of the head": "{head_mib:.0f} MiB",
}
"""The table of docs/operators.md."""


def cells(found: Found) -> list[str]:
    return [text.format(**vars(found)) for text in COLUMNS.values()]


def bench(
    run: Run,
    *,
    sizes: tuple[int, ...] = (16, 64, 128, 256, 512),
    steps: int = 20,
    step_seconds: float = 1.0,
    kib: int = 64,
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))
    run.head(*COLUMNS)
    for nodes in sizes:
        base = run.folder.resolve() / str(nodes)
        base.mkdir()
        try:
            run.row(*cells(simulate(base, nodes, steps, step_seconds, kib)))
        except GaveUp as error:
            sys.exit(f"error: {error}")
