"""The same chain on this machine alone: one supervisor, one node, no Slurm."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.host.ports import free_pair
from rlprof_ops.job import attempt
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.knobs import WITHOUT_BATCH_SCRIPT, filled
from rlprof_ops.job.supervisor_env import HeadAddress, node_command, python_environment, supervisor_env
from rlprof_ops.supervisor.task_process import TaskProcess, handed_on

_LOOPBACK = "127.0.0.1"
_ORDERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class LocalRun:
    """What a local run left behind."""

    exit_code: int
    run: RunFolder


def run_local(base: Path, settings: Mapping[str, str], on_line: Callable[[str], None]) -> LocalRun:
    """Run one job here: `settings` are knobs (COMMAND and so on), `on_line` gets each line of the driver's
    output. What the files of site and trainer say is added. Raises UsageError for one that cannot be read.

    The run folder is `<base>/local-<pid>-logs`. SIGTERM, an interrupt and the end of the terminal drain the
    job, as scancel does on a cluster; so does this process's own death, whatever killed it.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    env = filled({**env, **settings, **WITHOUT_BATCH_SCRIPT})
    job = f"local-{os.getpid()}-{int(time.time()) % 100000}"
    run = RunFolder(base.resolve() / attempt.folder_name(job))
    run.create()
    run.write_token()
    node = os.uname().nodename
    address = HeadAddress(_LOOPBACK, *free_pair(os.getpid()))
    env |= supervisor_env(job, run, node, [node], address)
    process = TaskProcess(node_command(), python_environment(env, on_path=False))
    follower = threading.Thread(target=_follow, args=(run.logs / "driver.log", process, on_line))
    heard = (number for number in _ORDERS if signal.getsignal(number) is not signal.SIG_IGN)  # nohup
    with handed_on(dict.fromkeys(heard, signal.SIGTERM), process.tell):
        follower.start()
        process.wait()
    follower.join(timeout=5)
    return LocalRun(process.exit_code(), run)


def _follow(log: Path, process: TaskProcess, on_line: Callable[[str], None]) -> None:
    with contextlib.suppress(OSError):  # of a terminal that is gone
        for line in _lines(log, lambda: not process.ended):
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
