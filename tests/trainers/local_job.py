"""A real trainer in a job on this machine alone: a supervisor, its Ray, one node, and no Slurm."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.job.knobs import import_path
from tests.trainers import environments, runs

_PROGRAM = """
import os, sys
from pathlib import Path
from rlprof_ops.demo.local_job import run_local
sys.exit(run_local(Path(sys.argv[1]), {}, print).exit_code)
"""
_DRAIN_S = 180.0


@dataclass(frozen=True)
class LocalJob:
    """What a run left: the run folder, and all that was printed."""

    run: Path
    output: str

    @classmethod
    def take(
        cls,
        trainer: str,
        folder: Path,
        steps: int,
        timeout_s: float,
        overrides: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        last_words: str = "",
        argv: Sequence[str] = (),
        tasks: Path | None = None,
        **knobs: str,
    ) -> LocalJob:
        """Run the trainer for `steps` steps, with the job's `knobs`, and `env` for its command alone. `argv`
        runs in the trainer's stead. TRL has no Ray: there the job's is of this environment. `tasks` is a file
        for what Ray itself tells of every task when the trainer has ended (`ray.timeline`).

        `last_words` is what the trainer says after its last step. An interpreter that crashes later, while
        it ends (NeMo RL on its CPU shim, once in five runs), is said and does not fail what is tested here.
        """
        if why := environments.lacking(trainer):
            pytest.skip(why)
        folder.mkdir(parents=True)
        run = runs.trainer_run(
            trainer,
            work=folder,
            steps=steps,
            ray_address=runs.FROM_ENVIRONMENT,
            env=env,
            overrides=overrides,
        )
        if argv:
            run = replace(run, argv=tuple(argv))
        settings = {
            **run.environment(),
            "PYTHONPATH": import_path(),
            "COMMAND": command(run) if tasks is None else f"({command(run)}\n)\n{_and_tasks(tasks)}",
            "RLPROF_NODE_ROOT": "/tmp",
            "RLPROF_READY_SECONDS": "200",
            "RLPROF_REPORT_SECONDS": "0",
            "RAY_AUTH_MODE": "disabled",
            "CPUS_PER_WORKER": "16",
            **knobs,
        }
        python = sys.executable if trainer == "trl" else str(environments.ensure(trainer).python)
        settings["PATH"] = f"{Path(python).parent}:{settings['PATH']}"
        code, said = _ended([python, "-P", "-c", _PROGRAM, str(folder)], settings, timeout_s)
        crashed_late = code == 139 and bool(last_words) and last_words in said
        if crashed_late:
            warnings.warn(f"{trainer} crashed (exit code 139) after its last step", stacklevel=2)
        assert code == 0 or crashed_late, said[-8000:]
        [left] = folder.glob("local-*-logs")
        return cls(left, said)

    def states(self) -> dict[str, str]:
        """Capture id -> state."""
        return {capture.id: capture.state for capture in Manifest.load(self.run).captures}

    def said(self) -> str:
        """The output without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.output)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What any process told of that kind."""
        rows = [
            json.loads(line)
            for path in self.run.glob("nodes/*/events/*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return [row for row in rows if row["event"] == kind]


def _ended(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> tuple[int, str]:
    """Exit code and output. A job that is late is told to end, as by scancel, and fails the test."""
    job = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = job.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGTERM)
        try:
            said, _ = job.communicate(timeout=_DRAIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            said, _ = job.communicate(timeout=_DRAIN_S)
        pytest.fail(f"not at its end within {timeout_s:.0f} s:\n{said[-8000:]}")
    return job.returncode, said


def command(run: runs.TrainerRun) -> str:
    """COMMAND of a job: the trainer's own PYTHONPATH stands behind the one that the job gives."""
    path = run.env.get("PYTHONPATH")
    if not path:
        return run.shell()
    shell = run.shell().replace(f"PYTHONPATH={path} ", "")
    assert shell != run.shell()
    return f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{path}"\n{shell}'


def _and_tasks(path: Path) -> str:
    """The rest of a COMMAND, which ends as what stood before did."""
    told = shlex.quote(f"import ray; ray.init(log_to_driver=False); ray.timeline({str(path)!r})")
    return f"code=$?\nRLPROF_ADAPTERS=0 python -P -c {told}\nexit $code"
