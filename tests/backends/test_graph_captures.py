"""What must not happen while a CUDA graph is captured waits for its end; classes shaped as torch's stand for
it here, and `tests/gpu/test_windows.py` has the real ones.
"""

from __future__ import annotations

import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rlprof_ops.backends.contract import CaptureError
from rlprof_ops.backends.graph_captures import GraphCaptures


def of_torch() -> Any:
    """torch.cuda.graphs: a base of C++ and its subclass."""

    class Base:
        fails = False

        def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
            if self.fails:
                raise RuntimeError("no memory for it")

        def capture_end(self) -> None:
            if self.fails:
                raise RuntimeError("capture invalidated")

    class CUDAGraph(Base):
        def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
            super().capture_begin(pool=pool, capture_error_mode=capture_error_mode)

        def capture_end(self) -> None:
            super().capture_end()

    return SimpleNamespace(CUDAGraph=CUDAGraph, Base=Base)


@pytest.fixture
def captures() -> GraphCaptures:
    return GraphCaptures()


@pytest.fixture
def torch(captures: GraphCaptures) -> Any:
    graphs = of_torch()
    captures.follow(graphs)
    return graphs


def until(said: Any) -> None:
    end = time.monotonic() + 60
    while not said() and time.monotonic() < end:
        time.sleep(0.001)
    assert said()


class Beside(threading.Thread):
    """A thread that stays apart for as long as it is told."""

    def __init__(self, captures: GraphCaptures, wait_s: float = 60.0) -> None:
        super().__init__(daemon=True)
        self._captures, self._wait_s = captures, wait_s
        self.inside, self.leave = threading.Event(), threading.Event()
        self.refused = ""
        self.start()

    def run(self) -> None:
        try:
            with self._captures.apart(self._wait_s):
                self.inside.set()
                self.leave.wait(60)
        except CaptureError as error:
            self.refused = str(error)


def test_a_profiler_waits_for_the_capture_that_goes_on(captures: GraphCaptures, torch: Any):
    graph = torch.CUDAGraph()
    graph.capture_begin()
    beside = Beside(captures)
    assert not beside.inside.wait(0.1)
    graph.capture_end()
    assert beside.inside.wait(60)
    beside.leave.set()
    beside.join(60)


def test_a_capture_waits_for_the_profiler_that_begins(captures: GraphCaptures, torch: Any):
    beside, graph, began = Beside(captures), torch.CUDAGraph(), threading.Event()
    assert beside.inside.wait(60)

    def capture() -> None:
        graph.capture_begin(capture_error_mode="thread_local")
        began.set()
        graph.capture_end()

    capturing = threading.Thread(target=capture)
    capturing.start()
    assert not began.wait(0.1)
    beside.leave.set()
    assert began.wait(60)
    capturing.join(60)


def test_a_profiler_comes_in_between_captures_that_follow_each_other_at_once(
    captures: GraphCaptures, torch: Any
):
    ended = threading.Event()

    def capture() -> None:
        while not ended.is_set():
            graph = torch.CUDAGraph()
            graph.capture_begin()
            time.sleep(0.002)
            graph.capture_end()

    capturing = threading.Thread(target=capture)
    capturing.start()
    try:
        for _ in range(20):
            with captures.apart(60):
                pass
    finally:
        ended.set()
        capturing.join(60)


def test_a_capture_that_does_not_end_is_no_reason_to_break_it(captures: GraphCaptures, torch: Any):
    graph = torch.CUDAGraph()
    graph.capture_begin()
    beside = Beside(captures, wait_s=0.05)
    until(lambda: beside.refused)
    assert "0.05 s" in beside.refused or "50 ms" in beside.refused
    # Nobody waits any more: another thread's capture may begin.
    other = threading.Thread(target=lambda: torch.CUDAGraph().capture_begin())
    other.start()
    other.join(60)
    assert not other.is_alive()


def test_the_thread_that_captures_is_told_at_once(captures: GraphCaptures, torch: Any):
    torch.CUDAGraph().capture_begin()
    with pytest.raises(CaptureError, match="this thread was capturing"), captures.apart(60):
        pass


def test_a_block_in_a_block_of_the_same_thread_is_one(captures: GraphCaptures, torch: Any):
    with captures.apart(1), captures.apart(1):
        torch.CUDAGraph().capture_begin()  # its own: it must not wait for itself


def test_a_capture_that_fails_is_over(captures: GraphCaptures, torch: Any):
    graph = torch.CUDAGraph()
    graph.capture_begin()
    graph.fails = True
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="no memory"):
        graph.capture_begin()
    with captures.apart(0.05):
        pass


def test_a_programs_own_kind_of_graph_is_known_too(captures: GraphCaptures, torch: Any):
    class Own(torch.CUDAGraph):  # type: ignore[misc, name-defined]
        def capture_begin(self) -> None:
            torch.Base.capture_begin(self)

        def capture_end(self) -> None:
            torch.Base.capture_end(self)

    graph = Own()
    graph.capture_begin()
    beside = Beside(captures, wait_s=0.05)
    until(lambda: beside.refused)
    graph.capture_end()
    with captures.apart(1):
        pass


def test_followed_twice_it_counts_once(captures: GraphCaptures):
    graphs = of_torch()
    captures.follow(graphs)
    begin = graphs.Base.capture_begin
    captures.follow(graphs)
    assert graphs.Base.capture_begin is begin


@pytest.mark.torch
def test_torchs_own_class_can_be_followed_without_a_gpu(captures: GraphCaptures):
    graphs = pytest.importorskip("torch.cuda.graphs")
    kind = graphs.CUDAGraph
    bases = [each for each in kind.__mro__ if "capture_begin" in vars(each)]
    before = [(each, each.capture_begin, each.capture_end) for each in bases]
    try:
        captures.follow(graphs)
        assert [each.capture_begin for each in bases] != [begin for _, begin, _ in before]
    finally:
        for each, begin, end in before:
            each.capture_begin, each.capture_end = begin, end
    assert isinstance(graphs, ModuleType)
