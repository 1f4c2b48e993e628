"""Runs one job of the fault matrix on a sandbox and collects what became of it."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.backends.option_trial import BAD_LUCK
from rlprof_ops.collect.harvest.manifest import Manifest
from tests.faults.trainer import FIRST, HOLD, SECOND
from tests.sandbox import Sandbox
from tests.waits import wait_until

ROOT = Path(__file__).resolve().parents[2]


class AgentLost(Exception):
    """nsys 2023.4 on a busy machine: `nsys launch` sometimes does not find its agent, and the worker never
    starts.
    """


@dataclass
class Job:
    """A job that was submitted. `folder` is its run folder, `progress` the file where its trainer says how
    far it is.

    `stand_in`: not ray.sub but what tests/bench/losses compares it with.
    """

    sandbox: Sandbox
    id: int
    base: Path
    progress: Path
    stand_in: bool = False

    @property
    def folder(self) -> Path:
        return self.base / f"{self.id}-logs"

    def step(self) -> int:
        try:
            return int(self.progress.read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return 0

    def nodes(self) -> tuple[str, str]:
        """The nodes of rank 0 and rank 1."""
        _, first, second = self.progress.read_text().split()
        return first, second

    def wait_step(self, step: int = HOLD, timeout_s: float = 600) -> None:
        def arrived() -> bool:
            if self.step() >= step:
                return True
            state = self.sandbox.job(self.id)
            if self.agent_lost():
                raise AgentLost
            assert state.state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), (
                f"{state}\n{self.output()}"
            )
            return False

        wait_until(arrived, timeout_s, lambda: f"it is at step {self.step()}\n{self.output()}", pause_s=0.2)

    def agent_lost(self) -> bool:
        """Whether the job could not begin for a reason that is no part of the fault under test."""
        log = self.folder / ("driver.log" if self.stand_in else "logs/driver.log")
        said = log.read_text(errors="replace") if self.step() == 0 and log.exists() else ""
        return BAD_LUCK.search(said) is not None

    def go(self) -> None:
        self.progress.with_suffix(".go").touch()

    def output(self) -> str:
        parts = [self.base / f"slurm-{self.id}.out", *sorted((self.folder / "logs").glob("*.log"))]
        return "\n".join(
            f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in parts if path.exists()
        )

    def harvest(self) -> Manifest:
        """As a person does after the job, on the login node; also where the job itself could."""
        self.sandbox.run(
            [sys.executable, "-m", "rlprof_ops", "harvest", str(self.folder), "--json"],
            env={"PYTHONPATH": str(ROOT / "python")},
            timeout=300,
            check=False,
        )
        return Manifest.load(self.folder)

    def node_log(self, node: str, name: str) -> str:
        """One of the supervisor's own logs in the node folder; empty when it is not there (any more)."""
        log = self.sandbox.tmp(node) / f"rlprof-0-{self.id}/logs/{name}"
        return log.read_text(errors="replace") if log.exists() else ""


def submit(
    sandbox: Sandbox,
    base: Path,
    fault: str = "",
    args: tuple[str, ...] = (),
    trainer: tuple[str, ...] = (),
    *,
    steps: str = f"{FIRST}, {SECOND}",
    local: bool = False,
    umask: str = "0022",
    **knobs: str,
) -> Job:
    """Submit ray.sub with the trainer of this folder on two nodes; `base` lies in the shared folder.

    `local`: the job runs in /tmp and the trainer says there how far it is, on node n1, because the shared
    folder is going to fail. `{base}` in a knob is where its files lie.
    """
    base.mkdir(parents=True, exist_ok=True)
    captures = [
        {"backend": backend, "workers": ["policy_worker"], "steps": steps} for backend in ("nsight", "torch")
    ]
    (base / "request.json").write_text(json.dumps({"captures": captures}))
    command, progress = trainer_command(sandbox, base, local, "--fault", fault, *trainer)
    env = {
        "COMMAND": command,
        "RLPROF_REQUEST": str(base / "request.json"),
        "RLPROF_VENV": sys.prefix,
        "BASE_LOG_DIR": str(base),
        "RAY_LOG_SYNC_FREQUENCY": "2",
        "GPUS_PER_NODE": "2",
        "RLPROF_READY_SECONDS": "400",
        **{name: value.replace("{base}", str(base)) for name, value in knobs.items()},
    }
    said = f"--output={base}/slurm-%j.out"
    words = [
        "sbatch",
        "--parsable",
        "-N2",
        "--gres=gpu:2",
        "--no-requeue",
        said,
        *args,
        str(ROOT / "ray.sub"),
    ]
    cwd = Path("/tmp") if local else base  # the shell of a new worker looks at it
    done = sandbox.run(["sh", "-c", 'umask "$0" && exec "$@"', umask, *words], env=env, cwd=cwd)
    return Job(sandbox, int(done.stdout.strip().splitlines()[-1]), base, progress)


def trainer_command(sandbox: Sandbox, base: Path, local: bool, *words: str) -> tuple[str, Path]:
    """The command of the trainer with `words`, and where this machine sees its progress."""
    name = f"progress-{base.name}"
    inside, seen = (
        (Path("/tmp") / name, sandbox.tmp("n1") / name) if local else (base / "progress", base / "progress")
    )
    return shlex.join(
        ["python", str(ROOT / "tests/faults/trainer.py"), "--progress", str(inside), *words]
    ), seen


def left_behind(sandbox: Sandbox, user_folders: bool = True) -> dict[str, list[str]]:
    """Processes and files that are still on the nodes; empty when all is clean."""
    found: dict[str, list[str]] = {}
    for node in sandbox.nodes:
        left = [f"process {process.pid} {process.cmdline[:100]}" for process in sandbox.processes(node)]
        left += [
            f"file /tmp/{path.name}"
            for path in sandbox.files_in_tmp(node)
            if path.name.startswith(("rlprof", "ray", "nsys", "nvidia"))
        ]
        if left:
            found[node] = left
    return found
