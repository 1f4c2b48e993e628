"""`rlprof run` that is told to end, or killed: its job ends in order, and nothing of it runs on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.supervisor.one_node import DRIVER, WITHOUT_RAY
from tests.waits import wait_until

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.host import processes
from rlprof_ops.job.knobs import import_path

pytestmark = [pytest.mark.whole, pytest.mark.timeout(700)]

REQUEST = '{"captures": [{"backend": "torch", "workers": ["w"], "steps": "2"}]}'
# `rlprof run` with a Ray that is a stand-in.
STAND_IN = f"""
import sys
sys.executable = {str(WITHOUT_RAY)!r}
from rlprof_ops.cli import main
main()
"""


class Run:
    """`rlprof run -- python driver.py`, and what belongs to it."""

    def __init__(self, base: Path, *before: str, ray: bool = False, **more: str) -> None:
        self.base = base
        (base / "driver.py").write_text(DRIVER)
        env = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "RLPROF"))}
        env |= {
            "PYTHONPATH": import_path(),
            "SCALE_PYTHON": sys.executable,
            "RLPROF_NODE_ROOT": str(base) if not ray else "/tmp",
            "RLPROF_RECORD": "0",
            "RLPROF_DISTIL_MIB": "0",
            "RLPROF_REPORT_SECONDS": "0",
            "GPUS_PER_NODE": "0",
            **more,
        }
        (base / "request.json").write_text(REQUEST)
        rlprof = [sys.executable, "-m", "rlprof_ops"] if ray else [sys.executable, "-c", STAND_IN]
        program = [sys.executable, str(base / "driver.py"), str(base), "0"]
        with open(base / "output", "wb") as output:
            self.process = subprocess.Popen(
                [*before, *rlprof, "run", "--request", "request.json", "--", *program],
                cwd=base,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        ended = lambda: self.process.poll() is not None  # noqa: E731
        wait_until((base / "trained").exists, 250, self.output, unless=ended)
        [self.folder] = base.glob("local-*-logs")

    def output(self) -> str:
        return (self.base / "output").read_text(errors="replace")

    def left(self) -> list[processes.Process]:
        job = self.folder.name.removesuffix("-logs")
        return processes.started_with(f"RLPROF_JOB={job}")

    def check(self) -> None:
        """It ended as a job that is told to."""
        wait_until(lambda: not self.left(), 200, lambda: f"{self.left()}\n{self.output()}")
        assert json.loads((self.folder / "run.json").read_text())["end"]["cause"] == "signal", self.output()
        states = [each.state for each in Manifest.load(self.folder).captures]
        assert states == ["ok"], (states, self.output())

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)
        if hasattr(self, "folder"):
            processes.end(self.left(), grace_s=0.2)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Run]]:
    begun: list[Run] = []
    yield begun
    for each in begun:
        each.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_order_to_end_is_handed_on(tmp_path: Path, runs: list[Run], number: signal.Signals):
    runs.append(Run(tmp_path))
    runs[0].process.send_signal(number)
    assert runs[0].process.wait(200) == 143, runs[0].output()
    runs[0].check()
    assert f"run folder: {runs[0].folder}" in runs[0].output()


def test_one_that_is_killed_ends_its_job_in_order(tmp_path: Path, runs: list[Run]):
    runs.append(Run(tmp_path))
    runs[0].process.kill()
    runs[0].check()


def test_nohup_keeps_it_from_the_end_of_its_terminal(tmp_path: Path, runs: list[Run]):
    if shutil.which("nohup") is None:
        pytest.skip("no nohup here")
    runs.append(Run(tmp_path, "nohup"))
    runs[0].process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert runs[0].process.wait(200) == 0, runs[0].output()


@pytest.mark.ray
def test_the_same_with_a_real_ray(tmp_path: Path, runs: list[Run]):
    runs.append(Run(tmp_path, ray=True))
    runs[0].process.send_signal(signal.SIGTERM)
    assert runs[0].process.wait(250) == 143, runs[0].output()
    runs[0].check()
