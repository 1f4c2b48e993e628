"""A job of one node on this machine with everything real but Ray, whose processes are stand-ins: the keeper,
its supervisor, sync, drain, manifest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.waits import wait_until

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.host import processes
from rlprof_ops.host.ports import free_pair
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.knobs import import_path
from rlprof_ops.job.supervisor_env import HeadAddress, supervisor_env

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_RAY = Path(__file__).with_name("without_ray.sh")
# Goes on until it is ended: with CODE where it is asked to end.
DRIVER = f"""
import pathlib, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.supervisor.trained import train
base, code = pathlib.Path(sys.argv[1]), int(sys.argv[2])
if code:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
train(0)
(base / "trained").touch()
while not (base / "go").exists():
    time.sleep(0.02)
"""


@dataclass
class OneNode:
    """The node's task, and where its files are."""

    base: Path
    run: RunFolder
    job: str
    env: dict[str, str]
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, base: Path, code: int = 0, job: str = "", **knobs: str) -> OneNode:
        """`code`: the driver's exit code when it is asked to end; 0: SIGTERM kills it."""
        (base / "nodes").mkdir(parents=True)
        (base / "driver.py").write_text(DRIVER)
        job = job or f"local-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
        run = RunFolder(base / f"{job}-logs")
        run.create()
        run.write_token()
        env = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "RLPROF"))}
        env |= supervisor_env(job, run, "n1", ["n1"], HeadAddress("127.0.0.1", *free_pair(os.getpid())))
        env |= {
            "COMMAND": f"{sys.executable} {base / 'driver.py'} {base} {code}",
            "RLPROF_REQUEST_JSON": '{"captures": [{"backend": "torch", "workers": ["w"], "steps": "2"}]}',
            "RLPROF_NODE_ROOT": str(base / "nodes"),
            "RLPROF_HARVEST_JOB": "0",
            "RLPROF_RECORD": "0",
            "RLPROF_DISTIL_MIB": "0",
            "RLPROF_REPORT_SECONDS": "0",
            "RAY_LOG_SYNC_FREQUENCY": "1",
            "GPUS_PER_NODE": "0",
            "PYTHONPATH": import_path(),
            "SCALE_PYTHON": sys.executable,
            **knobs,
        }
        with open(base / "output", "wb") as output:
            process = subprocess.Popen(
                [WITHOUT_RAY, "-m", "rlprof_ops.supervisor"],
                env=env,
                cwd=base,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(base, run, job, env, process)

    @property
    def folder(self) -> Path:
        return self.base / "nodes" / f"rlprof-{os.getuid()}-{self.job}"

    def output(self) -> str:
        logs = [self.base / "output", *sorted(self.run.logs.glob("*.log"))]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')}" for path in logs)

    def wait_for(self, name: str) -> None:
        """Until the driver has come so far."""
        wait_until((self.base / name).exists, 120, self.output, pause_s=0.01, unless=self.has_ended)

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill_supervisor(self) -> int:
        """SIGKILL; its pid. Fails the test where the node has ended."""
        pid = wait_until(self._supervisor, 60, self.output, pause_s=0.005, unless=self.has_ended)
        os.kill(pid, signal.SIGKILL)
        return pid

    def _supervisor(self) -> int:
        return next((pid for pid in children(self.process.pid) if is_supervisor(pid)), 0)

    def code(self, seconds: float = 120) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the task still runs\n{self.output()}") from None

    def left(self) -> list[processes.Process]:
        """Processes of this job."""
        found = processes.of_job(self.job, self.folder)
        return [
            *found,
            *(each for each in processes.started_with(f"RLPROF_JOB={self.job}") if each not in found),
        ]

    def manifest(self) -> Manifest:
        return Manifest.load(self.run.path)

    def end(self) -> None:
        """End what is left of it."""
        self.process.kill()
        self.process.wait(20)
        processes.end(self.left(), grace_s=0.2)


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_supervisor(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and b"rlprof_ops.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
