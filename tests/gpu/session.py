"""A worker in a session of nsys, its windows taken as we take them, and what its reports hold."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.backends.nsight.nsys_options import split_options
from rlprof_ops.backends.nsight.session_recorder import NsysSessionRecorder
from rlprof_ops.job.knobs import import_path
from rlprof_ops.request.model import CaptureSpec

WORKER = Path(__file__).with_name("worker.py")
DEADLINE_S = 300.0


@dataclass
class Worker:
    """The process of worker.py; `ask` is one command and its answer."""

    process: subprocess.Popen[str]

    def ask(self, do: str, **named: Any) -> dict[str, Any]:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps({"do": do, **named}) + "\n")
        stdin.flush()
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            until = time.monotonic() + DEADLINE_S
            while time.monotonic() < until and ready.select(until - time.monotonic()):
                line = stdout.readline()
                if line.startswith("{"):  # nsys talks on the same pipe
                    answer: dict[str, Any] = json.loads(line)
                    return answer
                if not line:
                    break
        raise AssertionError(f"no answer to {do} within {DEADLINE_S:.0f} s")


@contextlib.contextmanager
def bare() -> Iterator[Worker]:
    """A worker without nsys."""
    with _running([], {}) as worker:
        yield worker


@contextlib.contextmanager
def launched(name: str, spec: CaptureSpec) -> Iterator[Worker]:
    """A worker in the idle session `name`."""
    argv = [nsys_cli.find() or "nsys", "launch", f"--session-new={name}", *split_options(spec).launch]
    with _running(argv, {"RLPROF_NSYS_SESSION": name}) as worker:
        yield worker


@contextlib.contextmanager
def _running(argv: list[str], variables: dict[str, str]) -> Iterator[Worker]:
    process = subprocess.Popen(
        [*argv, sys.executable, "-u", str(WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": import_path(), **variables},
    )
    try:
        worker = Worker(process)
        worker.ask("ready")  # nsys knows the session from the program's beginning on
        yield worker
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Window:
    """A closed window: its report, and what nsys and training took for it."""

    report: Path
    open_s: float
    close_s: float
    finish_s: float
    times: list[float]


def window(worker: Worker, name: str, spec: CaptureSpec, folder: Path, **steps: Any) -> Window:
    """Open a window, run steps in it, close it: training waits for `open_s` and `close_s` alone."""
    recorder = NsysSessionRecorder(name, spec)
    began = time.perf_counter()
    recorder.open(folder / f"{name}-{time.monotonic_ns()}{nsys_cli.SUFFIX}")
    opened = time.perf_counter()
    times = worker.ask("steps", **steps)["times"]
    done = time.perf_counter()
    stopping = recorder.close()
    closed = time.perf_counter()
    report = stopping.wait()
    return Window(report, opened - began, closed - done, time.perf_counter() - closed, times)


def spec(**options: str) -> CaptureSpec:
    """CUDA and ranges; without a GPU ranges alone, since nsys crashes on a CUDA trace of nothing."""
    traced = "nvtx" if os.environ.get("RLPROF_GPU") == "rehearse" else "cuda,nvtx"
    return CaptureSpec(options={"t": traced, **options})


def exported(report: Path) -> tuple[Path, float]:
    """The report as SQLite, and the seconds that nsys took for it."""
    target = report.with_suffix(".sqlite")
    began = time.perf_counter()
    argv = [nsys_cli.find() or "nsys", "export", "--type=sqlite", "--force-overwrite=true", "-o"]
    subprocess.run([*argv, str(target), str(report)], check=True, capture_output=True, timeout=600)
    return target, time.perf_counter() - began


def rows(database: Path, table: str) -> int:
    """Rows of a table, 0 where there is none."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        named = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) if named else 0


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"


def sessions() -> dict[str, str]:
    """`nsys sessions list`: name -> state."""
    done = subprocess.run(nsys_cli.list_argv(), capture_output=True, text=True, timeout=60, check=False)
    return nsys_cli.session_states(done.stdout)
