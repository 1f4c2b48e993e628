"""A box: one process that is PID 1 of its own PID, mount, network, host name and IPC namespaces. A node,
or the login node.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.sandbox.spec import SandboxError, Spec
from tests.waits import poll

INIT = Path(__file__).with_name("init.sh")


@dataclass(frozen=True)
class Living:
    """A process as the host sees it; pid and start time together name it for ever."""

    pid: int
    start_time: int

    def alive(self) -> bool:
        return start_time(self.pid) == self.start_time

    def kill(self) -> None:
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)

    def gone_within(self, timeout_s: float) -> bool:
        return poll(lambda: not self.alive(), timeout_s, pause_s=0.02)


@dataclass(frozen=True)
class Box(Living):
    """A running box by its PID 1. Killing it ends every process of the box, as a power cut would."""

    name: str
    pid_namespace: str

    def enter(self) -> list[str]:
        """The command line that runs what follows it inside the box."""
        return ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "--"]


@dataclass(frozen=True)
class Process:
    """One process inside a box: pid as the box sees it, and as the host sees it."""

    pid: int
    user: int
    cmdline: str
    host_pid: int
    name: str


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which a process started; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def host_pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def processes(pid_namespace: str) -> list[Process]:
    """The living processes of one PID namespace, in order of their pid."""
    found = []
    for pid in host_pids():
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") != pid_namespace:
                continue
            status = dict(
                line.split(":", 1)
                for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                if ":" in line
            )
            cmdline = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if status["State"].split()[0] in "ZX":
            continue
        name = status["Name"].strip()
        text = cmdline.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace") or f"[{name}]"
        found.append(
            Process(int(status["NSpid"].split()[-1]), int(status["Uid"].split()[0]), text, pid, name)
        )
    return sorted(found, key=lambda process: process.pid)


def _children(parent: int) -> list[int]:
    found = []
    for pid in host_pids():
        try:
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(pid)
        except OSError:
            continue
    return found


class Starting:
    """A box on its way: its namespaces are there, its daemons wait until `go`."""

    def __init__(self, spec: Spec, name: str, role: str) -> None:
        self.name = name
        self.log = spec.dir / "boxes" / f"{name}.log"
        visible = [path for path in spec.visible if Path(path).is_dir()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                # pdeathsig and kill-child chain the box's life to its keeper's, even when that is killed.
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "unshare",
                    "--net",
                    "--mount",
                    "--uts",
                    "--ipc",
                    "--pid",
                    "--mount-proc",
                    "--fork",
                    "--kill-child=KILL",
                    "--propagation",
                    "private",
                    "--",
                    "bash",
                    str(INIT),
                    role,
                    name,
                    str(spec.dir),
                    f"{spec.shm_mb}m",
                    spec.slurm,
                    *visible,
                    "--",
                    *spec.opened,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )

    def ready(self, deadline: float) -> Box:
        """Waits until the box has its mounts and host name."""
        if _read_line(self.process.stdout, deadline) != "ready":
            self.process.kill()
            raise SandboxError(
                f"box {self.name} did not come up:"
                f" {self.log.read_text(errors='replace')[-2000:] or 'no output'}"
            )
        children = _children(self.process.pid)
        if len(children) != 1:
            raise SandboxError(
                f"box {self.name} did not come up: unshare has {len(children)} children instead of 1"
            )
        started = start_time(children[0])
        if started is None:
            raise SandboxError(f"box {self.name} ended at once")
        return Box(children[0], started, self.name, os.readlink(f"/proc/{children[0]}/ns/pid"))

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()


def _read_line(stream: IO[bytes] | None, deadline: float) -> str:
    assert stream is not None
    if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
        return ""
    return stream.readline().decode(errors="replace").strip()
