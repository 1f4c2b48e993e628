"""A RayJob of one task, called as submitit calls it, in a process of its own: everything is real but Ray,
whose processes are stand-ins.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlprof_ops import RayJob
from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.host import processes
from rlprof_ops.job.knobs import import_path
from tests.supervisor.one_node import DRIVER, ROOT, WITHOUT_RAY, children, is_supervisor
from tests.waits import wait_until

ASKED = {"captures": [{"backend": "torch", "workers": ["w"], "steps": "2"}]}
SETTINGS = {
    "RLPROF_PYTHON": str(WITHOUT_RAY),
    "RLPROF_RECORD": "0",
    "RLPROF_DISTIL_MIB": "0",
    "RLPROF_REPORT_SECONDS": "0",
    "RAY_LOG_SYNC_FREQUENCY": "1",
    "GPUS_PER_NODE": "0",
}


@dataclass
class OneTask:
    base: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, base: Path, **settings: str) -> OneTask:
        (base / "nodes").mkdir()
        (base / "driver.py").write_text(DRIVER)
        env = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("SLURM", "SUBMITIT", "RLPROF"))
        }
        env |= {"PYTHONPATH": f"{import_path()}:{ROOT}", "SCALE_PYTHON": sys.executable}
        argv = [sys.executable, "-m", "tests.submitit_job.one_task", str(base), json.dumps(settings)]
        with open(base / "output", "wb") as output:
            return cls(base, subprocess.Popen(argv, env=env, cwd=base, stdout=output, stderr=output))

    @property
    def run(self) -> Path:
        """Of the attempt that is this process's own."""
        return max(self.base.glob(f"local-{self.process.pid}*-logs"), key=lambda folder: len(folder.name))

    @property
    def first(self) -> Path:
        return self.base / f"local-{self.process.pid}-logs"

    def say(self) -> str:
        logs = [self.base / "output", *sorted(self.base.glob("*-logs/logs/*.log"))]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')}" for path in logs)

    def wait_for(self, name: str) -> None:
        wait_until((self.base / name).exists, 120, self.say, unless=lambda: self.process.poll() is not None)

    def keeper(self) -> int:
        [pid] = children(self.process.pid)
        return pid

    def kill(self) -> None:
        """The keeper and its supervisor, before one of them can drain or another one be started."""
        keeper = self.keeper()
        os.kill(keeper, signal.SIGSTOP)
        for pid in [*(each for each in children(keeper) if is_supervisor(each)), keeper]:
            os.kill(pid, signal.SIGKILL)

    def summary(self, seconds: float = 180) -> dict[str, Any]:
        try:
            assert self.process.wait(seconds) == 0, self.say()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the task still runs\n{self.say()}") from None
        return json.loads((self.base / "summary.json").read_text())

    def states(self) -> dict[tuple[str, int | None, int], str]:
        captures = Manifest.load(self.run).captures
        return {(each.worker, each.rank, each.start): each.state for each in captures}

    def left(self) -> list[processes.Process]:
        return [
            each
            for folder in self.base.glob("*-logs")
            for each in processes.started_with(f"RLPROF_RUN_DIR={folder}")
        ]

    def end(self) -> None:
        self.process.kill()
        self.process.wait(20)
        processes.end(self.left(), grace_s=0.2)


def main(base: Path, settings: dict[str, str]) -> None:
    """`earlier` among the settings: an attempt that was killed before its harvest lies there; it goes on
    when its folder is ready.
    """
    if settings.pop("earlier", ""):
        earlier = base / f"local-{os.getpid()}-logs"
        (earlier / "nodes").mkdir(parents=True)
        (earlier / "run.json").write_text("{}")
        (base / "earlier").touch()
        while not (base / "begin").exists():
            time.sleep(0.02)
    settings = {**SETTINGS, "RLPROF_NODE_ROOT": str(base / "nodes"), **settings}
    command = [sys.executable, str(base / "driver.py"), str(base), "0"]
    found = RayJob(command, ASKED, settings, log_dir=base)()
    told = {name: value for name, value in asdict(found).items() if name != "manifest"}
    (base / "summary.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
