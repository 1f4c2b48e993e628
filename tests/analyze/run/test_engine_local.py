"""Many files on this machine: all are read at any number of workers, a killed worker costs one file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.shared import kernel, mark, write_trace

from rlprof_ops.analyze.run import worker_pool
from rlprof_ops.analyze.run.engine import summarise_all
from rlprof_ops.analyze.run.identity import find_reports
from rlprof_ops.analyze.run.worker_pool import each

KEPT: list[bytearray] = []


def answered(task: int) -> tuple[int, int]:
    if task < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return task, os.getpid()


def kept(task: int) -> tuple[int, int]:
    """A library that keeps 40 MiB of every file."""
    KEPT.append(bytearray(40 << 20))
    return task, os.getpid()


def grown_at_once(task: int) -> int:
    """The first grows, the second takes a while."""
    if task:
        time.sleep(100)
    KEPT.append(bytearray(40 << 20))
    return os.getpid()


def refused(task: int) -> int:
    raise ValueError(f"task {task}")


def killed(task: int) -> tuple[int, int]:
    return task, 0


@pytest.mark.timeout(300)
def test_512_reports_at_the_default_number_of_workers(tmp_path: Path) -> None:
    """`max_tasks_per_child` of concurrent.futures stopped at 128 files with two workers, for ever."""
    for rank in range(512):
        name = f"policy_worker_rank{rank}_step3-3_n{rank // 8}_{1000 + rank}.pt.trace.json"
        events = [mark("step 3", 0, 1000), mark("train", 10, 900), kernel("gemm", 20, 100.0)]
        write_trace(tmp_path / "profiles/torch/policy_worker" / f"rank{rank}" / name, events)
    begun = time.monotonic()
    answer = answer_of(tmp_path, cache=False)
    assert len(answer["coverage"]["reports"]) == 512 and len(answer["ranks"]) == 512
    assert time.monotonic() - begun < 200  # a few seconds, on a machine that has nothing else to do


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_window_of_the_drivers_log_is_read(tmp_path: Path, workers: int) -> None:
    """No profiler saw the driver; the two windows are parts of one file."""
    second = 1_000_000_000
    begin = 1_700_000_000 * second
    steps = [
        {"event": "step", "step": n, "begin_ns": begin + n * second, "end_ns": begin + (n + 1) * second,
         "phases": [["generation", begin + n * second, begin + n * second + second // 2, 0]]}
        for n in range(1, 11)
    ]  # fmt: skip
    log = tmp_path / "nodes/n1/events/controller_rank0_n1_42.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    for first, last in ((3, 4), (10, 10)):
        name = f"policy_worker_rank0_step{first}-{last}_n1_1000.pt.trace.json"
        events = [mark(f"step {first}", 0, 1000), mark("train", 10, 900), kernel("gemm", 20, 100.0)]
        write_trace(tmp_path / "profiles/torch/policy_worker/rank0" / name, events)
    read = summarise_all(tmp_path, find_reports(tmp_path), workers=workers, cache=False)
    steps_of = {(each.report.worker, each.report.start): [step.step for step in each.steps] for each in read}
    assert steps_of == {
        ("controller", 3): [3, 4], ("controller", 10): [10], ("policy_worker", 3): [3],
        ("policy_worker", 10): [10],
    }  # fmt: skip


@pytest.fixture(params=["fork", "spawn"])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "start_method", lambda: request.param)


def test_workers_are_copies_of_a_process_of_one_thread_alone() -> None:
    """A copy has imported what it needs. What another thread held, it would wait for without an end."""
    code = (
        "import threading; from rlprof_ops.analyze.run.worker_pool import start_method\n"
        "print(start_method()); done = threading.Event(); threading.Thread(target=done.wait).start()\n"
        "print(start_method()); done.set()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["fork", "spawn"]


@pytest.mark.usefixtures("start")
def test_a_worker_that_grew_ends_while_another_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the parent that kept its ends of other workers' pipes would keep these workers alive."""
    monkeypatch.setattr(worker_pool, "GROWTH_BYTES", 32 << 20)
    results = each(grown_at_once, range(2), 2, lambda task: -1)
    state = Path(f"/proc/{next(results)}/stat")
    deadline = time.monotonic() + 60
    while (
        not (ended := state.read_text().rpartition(")")[2].split()[0] == "Z") and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    results.close()  # type: ignore[attr-defined]
    assert ended


def test_small_files_are_read_by_as_many_processes_as_were_asked() -> None:
    """Starting an interpreter costs what reading a hundred small files does."""
    done = list(each(answered, range(300), 2, killed))
    assert len(done) == 300 and len({pid for _, pid in done}) == 2


@pytest.mark.usefixtures("start")
@pytest.mark.parametrize("workers", [2, 5])
def test_workers_that_grew_are_renewed_and_none_is_left(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "GROWTH_BYTES", 64 << 20)
    done = list(each(kept, range(12), workers, killed))
    assert sorted(task for task, _ in done) == list(range(12))
    pids = {pid for _, pid in done}
    assert 12 / 2 <= len(pids) <= 12 / 2 + workers  # 40 MiB each: two tasks a worker
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.usefixtures("start")
def test_a_killed_worker_costs_its_own_file_alone() -> None:
    done = dict(each(answered, [1, 2, -3, 4, -5, 6, 7], 2, killed))
    assert set(done) == {1, 2, -3, 4, -5, 6, 7}
    assert {task for task, pid in done.items() if pid == 0} == {-3, -5}


def test_an_exception_is_raised_where_the_results_are_taken() -> None:
    with pytest.raises(ValueError, match="task 1"):
        list(each(refused, [1], 2, killed))


@pytest.mark.usefixtures("start")
def test_workers_end_when_nobody_takes_the_rest() -> None:
    results = each(answered, range(1000), 2, killed)
    _, pid = next(results)
    results.close()  # type: ignore[attr-defined]
    assert not Path(f"/proc/{pid}").exists()


def test_a_report_starts_no_threads_for_matrices(tmp_path: Path) -> None:
    """numpy would start one a CPU, in every process, and they wait for work at full speed."""
    write_trace(tmp_path / "rank0.pt.trace.json", [mark("step 3", 0, 1000), kernel("gemm", 20, 100.0)])
    code = (
        "import os, sys; from rlprof_ops.commands.report import command\n"
        "command.main([sys.argv[1], '--no-cache', '--json', '-j', '1'], standalone_mode=False)\n"
        "print(len(os.listdir('/proc/self/task')), file=sys.stderr)"
    )
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    argv = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(argv, env=kept, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.split()[-1] == "1"
