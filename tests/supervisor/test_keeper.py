"""A node's task with real processes: what happens to it when its supervisor is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waits import wait_until

from rlprof_ops.job.knobs import import_path

TRIAL = Path(__file__).with_name("takeover_trial.py")


class Task:
    """The task of a node, and its supervisors by their pids."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        env = {**os.environ, "PYTHONPATH": import_path()}
        argv = [sys.executable, str(TRIAL), str(folder), kind]
        self.process = subprocess.Popen(
            argv, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True
        )
        self.wait_for("ready")

    def wait_for(self, name: str) -> None:
        wait_until(lambda: (self.folder / name).exists(), 60, unless=lambda: self.process.poll() is not None)

    def supervisor(self, number: int = 0) -> int:
        name = f"pid{number}"
        wait_until(lambda: (self.folder / name).exists() and bool((self.folder / name).read_text()), 60)
        return int((self.folder / name).read_text())

    def end(self) -> None:
        (self.folder / "end").touch()

    def code(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    tasks: list[Task] = []

    def begin(kind: str) -> Task:
        tasks.append(Task(tmp_path, kind))
        return tasks[-1]

    yield begin
    (tmp_path / "end").touch()
    for task in tasks:
        task.process.kill()
        task.process.wait(20)
        assert task.process.stderr is not None
        task.process.stderr.close()


def test_a_supervisor_that_ends_by_itself_gives_its_exit_code(start):
    task = start("plain")
    assert task.supervisor() != task.process.pid
    task.end()
    assert task.code() == 7
    assert not (task.folder / "inherited").exists()


@pytest.mark.parametrize("kind", ["plain", "late"])
def test_one_that_is_killed_has_a_successor_that_knows_the_drivers_exit_code(start, kind: str):
    task = start(kind)
    os.kill(task.supervisor(), signal.SIGKILL)
    if kind == "late":
        task.end()
    task.wait_for("inherited")
    assert (task.folder / "inherited").read_text() == "was killed by signal 9"
    task.end()
    assert task.code() == 17  # 10 more than the child's own, which was not the successor's child
    assert "the supervisor was killed by signal 9" in task.process.stderr.read()


def test_the_successor_may_be_killed_too_but_not_for_ever(start):
    task = start("plain")
    for number in range(3):
        os.kill(task.supervisor(number), signal.SIGKILL)
        if number == 0:
            task.wait_for("inherited")
    assert task.code() == -signal.SIGKILL  # two in a row that took over and died at once, of two allowed
    assert len(list(task.folder.glob("pid*"))) == 3
    assert task.process.stderr is not None and "number 2 in a row" in task.process.stderr.read()


@pytest.mark.parametrize("kind", ["before", "ending"])
def test_nobody_takes_over_before_the_job_runs_or_once_it_ends(start, kind: str):
    task = start(kind)
    os.kill(task.supervisor(), signal.SIGKILL)
    assert task.code() == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_goes_to_the_supervisor_and_is_no_reason_to_begin_again(start, number: signal.Signals):
    task = start("plain")
    began = time.monotonic()
    task.process.send_signal(number)
    assert task.code() == -number, "it has no handler here, so it dies of it, and its task as it did"
    assert time.monotonic() - began < 30
    assert len(list(task.folder.glob("pid*"))) == 1


def test_a_signal_that_comes_while_there_is_no_supervisor_is_for_the_next_one(start):
    task = start("plain")
    os.kill(task.supervisor(), signal.SIGKILL)
    assert task.process.stderr is not None and "takes over" in task.process.stderr.readline()
    task.process.send_signal(signal.SIGUSR2)
    task.wait_for("told")
    assert (task.folder / "told").read_text() == str(int(signal.SIGUSR2))
    os.kill(task.supervisor(1), signal.SIGKILL)  # nobody follows one that was told to end
    assert task.code() == -signal.SIGKILL
