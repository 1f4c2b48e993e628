"""Sessions of nsys around work on a GPU, opened while it runs."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from rlprof_ops.request.model import CaptureSpec
from tests.gpu.session import (
    GRAPHS,
    KERNELS,
    Worker,
    bare,
    exported,
    launched,
    rows,
    sessions,
    spec,
    window,
)

pytestmark = [pytest.mark.nsys, pytest.mark.torch, pytest.mark.timeout(1800)]
Say = Callable[[str], None]
STEPS, IN_STEP = 10, 200


def counted(worker: Worker, name: str, asked: CaptureSpec, folder: Path) -> tuple[int, int, float]:
    """Kernels and graph launches in a window of ten steps, and the seconds that training waits for it."""
    taken = window(worker, name, asked, folder, steps=STEPS, kernels=IN_STEP)
    database, _ = exported(taken.report)
    return rows(database, KERNELS), rows(database, GRAPHS), taken.open_s + taken.close_s


@pytest.mark.parametrize("traced", ["graph", "node"])
@pytest.mark.parametrize("who", ["process", "child"])
def test_a_graph_captured_before_the_window_is_in_it(
    gpu: bool, finding: Say, tmp_path: Path, who: str, traced: str
):
    asked, name = spec(**{"cuda-graph-trace": traced}), f"graph-{who}-{traced}"
    with launched(name, asked) as worker:
        if who == "child":
            worker.ask("child")
        is_graph = worker.ask("graph", kernels=IN_STEP)["graph"]
        kernels, graphs, waits_s = counted(worker, name, asked, tmp_path)
    seen = f"{kernels} kernels of {STEPS * IN_STEP}, {graphs} graph launches of {STEPS}"
    finding(
        f"graph captured before the window, in the {who}, {traced} tracing: {seen}, training waits"
        f" {waits_s:.2f} s"
    )
    assert is_graph == gpu
    assert not gpu or (graphs >= STEPS if traced == "graph" else kernels >= STEPS * IN_STEP)


def test_the_steps_after_a_window_are_as_long_as_those_before(gpu: bool, finding: Say, tmp_path: Path):
    """What nsys does in the process when a collection ends, and beside it until the report is written."""
    with launched("after", spec()) as worker:
        before = worker.ask("steps", steps=100, kernels=IN_STEP)["times"]
        taken = window(worker, "after", spec(), tmp_path, steps=STEPS, kernels=IN_STEP)
        after: list[float] = []
        while sum(after) < 10:
            after += worker.ask("steps", steps=100, kernels=IN_STEP)["times"]
    usual, middle = statistics.median(before), statistics.median(after)
    longest = ", ".join(f"{each:.3f}" for each in sorted(after)[-3:])
    finding(
        f"steps of {usual * 1e3:.2f} ms: for 10 s after a window the median is {middle * 1e3:.2f} ms, the"
        f" longest {longest} s; the report took {taken.finish_s:.1f} s"
    )
    assert not gpu or sum(each for each in after if each > 10 * usual) < 0.5


@pytest.mark.parametrize("thousands", [1000, 5000, 20000])
def test_seconds_and_bytes_of_a_report_by_its_kernels(
    gpu: bool, finding: Say, tmp_path: Path, thousands: int
):
    kernels = thousands * 1000 if gpu else thousands
    with launched("size", spec()) as worker:
        taken = window(worker, "size", spec(), tmp_path, steps=10, kernels=kernels // 10)
    database, export_s = exported(taken.report)
    sizes = [path.stat().st_size / 1e6 for path in (taken.report, database)]
    finding(
        f"{rows(database, KERNELS) / 1e6:.1f} M kernels: training waits {taken.open_s + taken.close_s:.2f} s,"
        f" report after {taken.finish_s:.1f} s ({sizes[0]:.0f} MB), SQLite after {export_s:.1f} s"
        f" ({sizes[1]:.0f} MB)"
    )
    assert not gpu or rows(database, KERNELS) >= kernels


def test_eight_sessions_at_once_and_one_with_gpu_metrics(gpu: bool, finding: Say, tmp_path: Path):
    count = 8 if gpu else 2
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(launched(name, spec())) for name in (f"of8-{n}" for n in range(count))
        }
        kernels = {name: counted(worker, name, spec(), tmp_path)[0] for name, worker in workers.items()}
        finding(f"{count} sessions on one node: kernels {sorted(kernels.values())}")
        metrics = spec(**{"gpu-metrics-device": "0"})
        try:
            with launched("metrics", metrics) as worker:
                more = counted(worker, "metrics", metrics, tmp_path)[0]
            finding(f"one more with GPU metrics: {more} kernels")
        except Exception as error:
            finding(f"one more with GPU metrics is refused: {str(error)[:300]}")
    assert not gpu or min(kernels.values()) >= STEPS * IN_STEP


def test_cost_of_a_session_without_a_window(gpu: bool, finding: Say):
    def step_s(worker: Worker) -> float:
        return float(statistics.median(worker.ask("steps", steps=200, kernels=IN_STEP)["times"]))

    with bare() as alone, launched("idle", spec()) as inside:
        for worker in (alone, inside):
            step_s(worker)
        pairs = [(step_s(alone), step_s(inside)) for _ in range(5)]
    ratio = statistics.median(b / a for a, b in pairs)
    times = [statistics.median(side) * 1e6 / IN_STEP for side in zip(*pairs, strict=True)]
    finding(f"idle session: {times[1]:.2f} us a kernel launch, {times[0]:.2f} us without: ratio {ratio:.3f}")
    assert not gpu or ratio < 1.1


def test_states_of_a_session(gpu: bool, finding: Say, tmp_path: Path):
    with launched("states", spec()) as worker:
        worker.ask("steps", steps=1)
        before = sessions().get("states")
        taken = window(worker, "states", spec(), tmp_path, steps=1)
        finding(f"nsys sessions list: {before!r} before a window, {sessions().get('states')!r} after it")
    assert before and taken.report.exists()
