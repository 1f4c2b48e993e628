"""The same chain on this machine alone: one supervisor, one node, no Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.host.ports import free_pair
from rlprof_ops.job import attempt
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.knobs import import_path
from rlprof_ops.job.supervisor_env import HeadAddress, supervisor_env

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LocalRun:
    """What a local run left behind."""

    exit_code: int
    run: RunFolder


def run_local(base: Path, settings: Mapping[str, str], on_line: Callable[[str], None]) -> LocalRun:
    """Run one job here: `settings` are knobs (COMMAND and so on), `on_line` gets each line of the driver's
    output.

    The run folder is `<base>/local-<pid>-logs`. An interrupt drains the job, as scancel does on a cluster.
    """
    job = f"local-{os.getpid()}-{int(time.time()) % 100000}"
    run = RunFolder(base.resolve() / attempt.folder_name(job))
    run.create()
    run.write_token()
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    env |= settings
    node = os.uname().nodename
    address = HeadAddress(_LOOPBACK, *free_pair(os.getpid()))
    env |= supervisor_env(job, run, node, [node], address)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [import_path(), env.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "rlprof_ops.supervisor"], env=env, stdin=subprocess.DEVNULL
    )
    follower = threading.Thread(target=_follow, args=(run.logs / "driver.log", process, on_line))
    follower.start()
    code = _wait(process)
    follower.join(timeout=5)
    return LocalRun(code, run)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the supervisor; the terminal's interrupt reaches it too, so it drains and ends by itself."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def _follow(log: Path, process: subprocess.Popen[bytes], on_line: Callable[[str], None]) -> None:
    for line in _lines(log, lambda: process.poll() is None):
        on_line(line)


def _lines(log: Path, running: Callable[[], bool]) -> Iterator[str]:
    """Lines of a growing file, until the writer has ended and the file is read to its end."""
    while not log.exists():
        if not running():
            return
        time.sleep(0.1)
    with open(log, encoding="utf-8", errors="replace") as file:
        while True:
            last_look = not running()
            while line := file.readline():
                yield line.rstrip("\n")
            if last_look:
                return
            time.sleep(0.1)
