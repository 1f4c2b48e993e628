"""What the tests of whole jobs share: submit ray.sub on the sandbox as a user would, and read what it
left.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.sandbox import JobState, Sandbox, SandboxError
from tests.waits import wait_until

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.job.run_json import schema

RUN_SCHEMA = schema()
HOME = Path(__file__).parents[2]
NEEDS = (pytest.mark.slurm, pytest.mark.nsys, pytest.mark.ray, pytest.mark.torch)  # of a test of the demo
DEMO = "python -m rlprof_ops.demo --steps 8"
ASKED = {
    "RLPROF_STEPS": "3:5,7",
    "RLPROF_WORKERS": "policy_worker,generation_worker",
    "RLPROF_OPTIONS": '{"t": "nvtx"}',
}


@dataclass(frozen=True)
class Job:
    """One job on the sandbox; `folder` is where sbatch was called, with a space in its name."""

    sandbox: Sandbox
    id: int
    folder: Path

    @classmethod
    def submit(
        cls, sandbox: Sandbox, *arguments: str, nodes: int = 3, user: str | None = None, **knobs: str
    ) -> Job:
        folder = sandbox.shared / "my project"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        env = {"RLPROF_VENV": sys.prefix} | knobs
        job = sandbox.sbatch([f"-N{nodes}", *arguments, HOME / "ray.sub"], env=env, cwd=folder, user=user)
        return cls(sandbox, job, folder)

    def wait(self, timeout: float = 480) -> JobState:
        """The end of the job, and of the job that harvests it where there is one."""
        try:
            state = self.sandbox.wait(self.id, timeout=timeout)
        except SandboxError as error:
            raise SandboxError(f"{self.say()}\n{error}") from None
        coming = self.run / "harvest_job.json"
        wait_until(lambda: not coming.exists(), timeout, self.say, pause_s=0.2)
        return state

    @property
    def run(self) -> Path:
        return self.folder / f"{self.id}-logs"

    @property
    def output(self) -> str:
        """What the batch script said."""
        return (self.folder / f"slurm-{self.id}.out").read_text(errors="replace")

    @property
    def manifest(self) -> Manifest:
        return Manifest.load(self.run)

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "run.json").read_text())
        jsonschema.validate(found, RUN_SCHEMA)
        return found

    def states(self) -> dict[str, str]:
        """Capture id -> state."""
        return {capture.id: capture.state for capture in self.manifest.captures}

    def leftovers(self) -> list[str]:
        """Processes of any node that belong to this job, and what it left in their /tmp."""
        found = []
        for node in self.sandbox.nodes:
            found += [f"{node}: {process}" for process in self.sandbox.processes(node)]
            found += [f"{node}: /tmp/{path.name}" for path in self.sandbox.files_in_tmp(node)]
        return found

    def say(self) -> str:
        """Everything a person would look at after a failure."""
        texts = [
            self.output,
            *(
                f"{node}: {process}"
                for node in self.sandbox.nodes
                for process in self.sandbox.processes(node)
            ),
        ]
        texts += [
            f"--- {path}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted((self.run / "logs").glob("*.log"))
        ]
        return "\n".join(texts)
