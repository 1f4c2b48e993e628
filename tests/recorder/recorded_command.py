"""A command in a node folder of its own, with a recorder beside it as a job's supervisor starts one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlprof_ops.job.knobs import python_path

OURS = ("TORCH_FR_", "TORCH_NCCL_", "RLPROF_")


class RecordedCommand:
    """`found` is what the recorder has found so far; `run` is the run folder, `node` the node folder."""

    def __init__(self, folder: Path, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.found = list[dict[str, Any]]()
        self.node, self.run, self._said = folder / "node", folder / "run", folder / "said"
        self.node.mkdir(parents=True)
        self.run.mkdir()
        env = {name: value for name, value in env.items() if not name.startswith(OURS)}
        env |= {"RLPROF_NODE_DIR": str(self.node), "RLPROF_RECORD": "1", "PYTHONPATH": python_path(None)}
        env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        words = ["-m", "rlprof_ops.recorder", f"--node-dir={self.node}", "--node=n1", "--nodes=n1"]
        with open(self._said, "wb") as said:
            self.recorder = subprocess.Popen(
                [sys.executable, *words, f"--run-dir={self.run}", "--job=1"],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
            )
            self.process = subprocess.Popen(
                command, env=env, cwd=folder, stdout=said, stderr=said, start_new_session=True
            )
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        assert self.recorder.stdout is not None
        for line in self.recorder.stdout:
            told = json.loads(line)
            if "finding" in told:
                self.found.append(told["finding"])

    def states(self) -> list[dict[str, Any]]:
        """What the ranks tell of themselves."""
        return [json.loads(path.read_text()) for path in (self.node / "marks").glob("*.groups")]

    def output(self) -> str:
        return self._said.read_text(errors="replace")

    def said(self) -> str:
        return f"{self.found} {self.states()} {self.output()[-3000:]}"

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.recorder.terminate()
        self.recorder.wait(60)


@contextmanager
def recorded(
    folder: Path, command: Sequence[str], env: Mapping[str, str] = os.environ
) -> Iterator[RecordedCommand]:
    started = RecordedCommand(folder, command, env)
    try:
        yield started
    finally:
        started.end()
