"""A node's task with real processes: what happens to it when its supervisor is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.supervisor.one_node import children
from tests.waits import wait_until

from rlprof_ops.job.knobs import import_path

TRIAL = Path(__file__).with_name("takeover_trial.py")


class Task:
    """The task of a node, and its supervisors by their pids."""

    def __init__(self, folder: Path, kind: str, ready: str = "ready") -> None:
        self.folder = folder
        env = {**os.environ, "PYTHONPATH": import_path()}
        argv = [sys.executable, str(TRIAL), str(folder), kind]
        self.process = subprocess.Popen(
            argv, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True
        )
        self.wait_for(ready)

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

    def begin(kind: str, ready: str = "ready") -> Task:
        tasks.append(Task(tmp_path, kind, ready))
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


@pytest.mark.parametrize("kind", ["plain", "late", "asked"])
def test_one_that_is_killed_has_a_successor_that_knows_the_drivers_exit_code(start, kind: str):
    task = start(kind)
    os.kill(task.supervisor(), signal.SIGKILL)
    if kind == "late":
        task.end()
    task.wait_for("inherited")
    assert (task.folder / "inherited").read_text() == "was killed by signal 9"
    task.end()
    assert task.code() == 17  # 10 more than the driver's own, which was not the successor's child
    assert "the supervisor was killed by signal 9" in task.process.stderr.read()


def test_an_order_between_two_supervisors_is_heard_where_no_file_can_keep_it(start):
    task = start("plain")
    shutil.rmtree(task.folder / "state")
    (task.folder / "state").touch()
    os.kill(task.supervisor(), signal.SIGKILL)
    assert task.process.stderr is not None and "takes over" in task.process.stderr.readline()
    task.process.send_signal(signal.SIGUSR2)
    assert task.code() == 100
    assert (task.folder / "told").read_text() == "time_limit"


@pytest.mark.parametrize("killed", [False, True])
def test_a_state_that_nobody_can_write_any_more_costs_no_exit_code(start, killed: bool):
    task = start("plain")
    shutil.rmtree(task.folder / "state")
    (task.folder / "state").touch()
    if killed:
        os.kill(task.supervisor(), signal.SIGKILL)
        task.wait_for("inherited")
    task.end()
    assert task.code() == (17 if killed else 7)


def test_the_successor_may_be_killed_too_but_not_for_ever(start):
    task = start("plain")
    for number in range(3):
        os.kill(task.supervisor(number), signal.SIGKILL)
        if number == 0:
            task.wait_for("inherited")
    assert task.code() == -signal.SIGKILL  # two in a row that took over and died at once, of two allowed
    assert len(list(task.folder.glob("pid*"))) == 3
    assert task.process.stderr is not None and "number 2 in a row" in task.process.stderr.read()


def test_one_that_fails_by_itself_has_few_successors(start):
    task = start("faulty", ready="pid2")
    assert task.code() == 1
    said = task.process.stderr.read()
    assert "ValueError: a fault of ours" in said and "ended with exit code 1, number 2 in a row" in said


@pytest.mark.parametrize(
    ("number", "cause"),
    [(signal.SIGTERM, "signal"), (signal.SIGUSR2, "time_limit"), (signal.SIGINT, "signal")],
)
@pytest.mark.parametrize("killed", ["nobody", "before", "while it starts"])
def test_an_order_to_end_is_heard_whoever_died(start, number: signal.Signals, cause: str, killed: str):
    task = start("held" if killed == "while it starts" else "plain")
    if killed != "nobody":
        os.kill(task.supervisor(), signal.SIGKILL)
        assert task.process.stderr is not None and "takes over" in task.process.stderr.readline()
    if killed == "while it starts":
        task.supervisor(1)
    task.process.send_signal(number)
    if (
        killed == "while it starts"
    ):  # the one that has it pending dies, and the next one knows it all the same
        os.kill(task.supervisor(1), signal.SIGKILL)
        task.supervisor(2)
    assert task.code() == 100
    assert (task.folder / "told").read_text() == cause


def test_a_supervisor_without_its_keeper_ends_the_job_in_order(start):
    task = start("plain")
    [driver] = [pid for pid in children(task.process.pid) if pid != task.supervisor()]
    task.process.kill()
    wait_until(lambda: (task.folder / "told").exists(), 60)
    wait_until(lambda: not os.path.exists(f"/proc/{driver}") or "Z" in stat_of(driver), 60)


def stat_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
