"""Looking at running code keeps nothing alive that this code lets go of."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest
from tests.waits import wait_until

from rlprof_ops.runtime.on_demand import group_state
from rlprof_ops.runtime.process import frames
from rlprof_ops.runtime.process.hooks import Watch, caller_locals, follow

PACKAGE = Path(frames.__file__).parents[2]


class Batch:
    pass


def test_a_hook_that_reads_a_variable_of_its_caller_keeps_no_other():
    heard: list[object] = []
    timer = types.SimpleNamespace(start=lambda: None)
    adapter = {"__name__": "rlprof_ops.trainers.test", "heard": heard, "caller_locals": caller_locals}
    exec("def begins():\n    heard.append(caller_locals('step', 'nothing'))", adapter)
    follow(timer, "start", Watch("test", adapter["begins"]))

    def loop() -> int:
        for step in range(3):  # noqa: B007 - the hook reads it
            batch = Batch()
            seen = weakref.ref(batch)
            timer.start()
            del batch
            assert seen() is None
        return step

    assert loop() == 2
    assert heard == [(0, None), (1, None), (2, None)]


def test_what_a_function_took_of_locals_stays_its_own():
    def loop(rate: float, steps: int) -> dict[str, object]:
        settings = locals()
        assert frames.local_values(sys._getframe(), "rate") == (rate,)
        return {name: settings[name] for name in ("rate", "steps")}

    assert loop(0.1, 7) == {"rate": 0.1, "steps": 7}


def test_what_a_generator_holds_stays_its_own():
    def loop() -> Iterator[object]:
        outer = batch = Batch()
        [value] = frames.local_values(sys._getframe(), "outer")
        assert value is outer
        seen = weakref.ref(batch)
        del batch, outer, value
        yield seen()

    assert list(loop()) == [None]


def test_the_variables_of_a_module_and_of_a_class_stay():
    module: dict[str, object] = {"look": frames.local_values, "sys": sys}
    exec(
        "a = 1\nread = look(sys._getframe(), 'a')\n"
        "class C:\n    b = 2\n    read = look(sys._getframe(), 'b')\n",
        module,
    )
    assert module["a"] == 1 and module["read"] == (1,)
    assert vars(module["C"])["b"] == 2 and vars(module["C"])["read"] == (2,)


def test_nobody_else_in_the_package_takes_frames_of_others():
    lines = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "frames.py"
        for line in path.read_text().splitlines()
        if ".f_locals" in line or "._current_frames" in line
    ]
    assert not lines


@contextlib.contextmanager
def standing(tmp_path: Path, name: str) -> Iterator[tuple[int, str]]:
    """A thread that stands in line 2 of a file of that name."""
    path, stands, go = tmp_path / name, threading.Event(), threading.Lock()
    module: dict[str, object] = {"stands": stands, "go": go}
    exec(compile("def stand():\n    stands.set(); go.acquire()\n", str(path), "exec"), module)
    thread = threading.Thread(target=module["stand"])  # type: ignore[arg-type]
    go.acquire()
    thread.start()
    try:
        assert stands.wait(60) and thread.ident
        is_back = lambda: next(frames_from(thread.ident)).f_code.co_name == "stand"  # noqa: E731
        wait_until(is_back)  # from `set`; the lock has no frame of its own
        yield thread.ident, str(path)
    finally:
        go.release()
        thread.join(60)


@pytest.mark.parametrize("name", ["train.py", "träin 训练 😀.py"])
def test_the_places_of_a_thread_are_those_of_its_frames(tmp_path: Path, name: str):
    with standing(tmp_path, name) as (thread, path):
        found = list(frames.places(thread))
        theirs = [(frame.f_code.co_filename, frame.f_lineno) for frame in frames_from(thread)]
    assert (path, 2) in found and found == theirs
    assert list(frames.places(thread)) == []  # it has ended


def frames_from(thread: int) -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._current_frames()[thread]
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_at_most_a_hundred_frames_are_told():
    def deep(more: int) -> int:
        return deep(more - 1) if more else len(list(frames.places(threading.get_ident())))

    assert deep(150) == 100


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_it_was(enabled: bool):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        for _ in frames.places(threading.get_ident()):
            assert gc.isenabled() == enabled
        assert list(frames.places(0)) == [] and gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_a_collection_beside_threads_that_end_does_not_stop_the_process():
    """In 3.11 `sys._current_frames` by itself stands still here in most runs, with the interpreter's lock."""
    done = subprocess.run([sys.executable, "-c", COLLECTIONS], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


COLLECTIONS = """
import gc, threading, time
from rlprof_ops.runtime.on_demand import group_state
gc.callbacks.append(lambda *_: time.sleep(0))  # as a finalizer that lets others run
gc.set_threshold(1)
ended = threading.Event()
def threads():
    while not ended.is_set():
        threading.Thread(target=int).start()
making = threading.Thread(target=threads)
making.start()
for _ in range(300):
    group_state.where()
ended.set()
making.join()
"""


def test_a_trainer_may_close_its_shared_memory_while_it_is_looked_at():
    """As verl's `BucketedWeightReceiver`: the memory is closed when the last function that used it has
    returned. Beside a look that holds frames closing fails: "cannot close exported pointers exist".
    """
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            group_state.where()

    def load(memory: SharedMemory) -> int:
        weights = memory.buf[:64]
        return sum(bytes(weights[i : i + 8])[0] for i in range(0, 64, 8))

    interval = sys.getswitchinterval()
    looking = threading.Thread(target=look)
    looking.start()
    sys.setswitchinterval(1e-6)
    try:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            memory = SharedMemory(create=True, size=4096)
            try:
                assert load(memory) == 0
            finally:
                memory.close()
                memory.unlink()
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        looking.join(60)
