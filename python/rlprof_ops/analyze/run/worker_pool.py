"""Processes that each read one file at a time, renewed when they have grown and replaced when one is killed.

`concurrent.futures` does the same with `max_tasks_per_child`, and hangs for ever once every worker has done
its tasks and none is replaced (CPython gh-115634, Python 3.11 and later). Here no thread takes part: one loop
waits for all pipes at once, and a killed worker is told by the end of its pipe, which also names its file.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Generic, Literal, TypeVar, cast

Task = TypeVar("Task")
Done = TypeVar("Done")

# By so much a worker may have grown between two tasks: what a library keeps of each file cannot add up. A new
# one after so many files instead would spend most of the time on starting, where files are small.
GROWTH_BYTES = 512 << 20
_PR_SET_PDEATHSIG = 1


class _Worker(Generic[Task, Done]):
    """One process and this end of its pipe."""

    def __init__(self, function: Callable[[Task], Done], siblings: Iterable[Connection]) -> None:
        is_copy = start_method() == "fork"
        context = multiprocessing.get_context("fork") if is_copy else multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        # a copy of the parent's end, in whatever process, would keep a pipe open that the parent has closed
        copied = (self.connection, *siblings) if is_copy else ()
        arguments = theirs, function, os.getpid(), copied
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def give(self, task: Task) -> None:
        with contextlib.suppress(OSError):  # it is gone already, which its pipe tells
            self.connection.send(task)

    def dismiss(self) -> None:
        """Ends it between two tasks, without waiting for its interpreter to be taken down."""
        self.connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def each(
    function: Callable[[Task], Done],
    tasks: Sequence[Task],
    workers: int,
    killed: Callable[[Task], Done],
) -> Iterator[Done]:
    """`function(task)` for every task, in the order in which they are done, `workers` at a time.

    `killed` says what stands for the result of a task whose process was killed. An exception of `function` is
    raised here. When the iterator is closed, so are the processes.
    """
    todo = list(reversed(tasks))
    busy: dict[Connection, tuple[_Worker[Task, Done], Task]] = {}
    idle: list[_Worker[Task, Done]] = []
    dismissed: list[_Worker[Task, Done]] = []
    try:
        while todo or busy:
            while todo and len(busy) < workers:
                worker = idle.pop() if idle else _Worker(function, list(busy))
                task = todo.pop()
                busy[worker.connection] = worker, task
                worker.give(task)
            for ready in wait(list(busy)):
                worker, task = busy.pop(cast(Connection, ready))
                try:
                    result, grown = worker.connection.recv()
                except (EOFError, OSError):
                    worker.kill()
                    result = killed(task)
                else:
                    if grown < GROWTH_BYTES:
                        idle.append(worker)
                    else:
                        worker.dismiss()
                        dismissed.append(worker)
                if isinstance(result, Exception):
                    raise result
                yield result
    finally:
        for worker in [*idle, *(worker for worker, _ in busy.values()), *dismissed]:
            worker.kill()


def start_method() -> Literal["fork", "spawn"]:
    """How a worker starts: as a copy of this process, which has imported already what a worker needs, where
    this process has one thread. With several (Ray's, pyarrow's), of a library in C too, another may hold a
    lock, which the copy would wait for without an end.
    """
    try:
        alone = len(os.listdir("/proc/self/task")) == 1
    except OSError:  # not Linux, where system libraries may have threads that nothing here tells
        alone = False
    return "fork" if alone else "spawn"


def _serve(
    connection: Connection, function: Callable[[Task], Done], parent: int, copied: Iterable[Connection]
) -> None:
    """The loop of a worker; it ends with its pipe."""
    _end_with(parent)
    for other in copied:
        other.close()
    gc.freeze()  # what is there stays: a collection that walked it would take its own copy of it all
    begun = _resident_bytes()
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            task = connection.recv()
            try:
                result: Done | Exception = function(task)
            except Exception as error:
                result = error
            connection.send((result, _resident_bytes() - begun))


def _resident_bytes() -> int:
    """The memory of this process now, proc_pid_statm(5); 0 where that is not told."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _end_with(parent: int) -> None:
    """Has the kernel end this worker when the report is killed, as a job's end does at
    `RLPROF_REPORT_SECONDS`: one that reads a large file would otherwise go on for nobody.
    """
    with contextlib.suppress(OSError, AttributeError):  # not Linux: it ends with the file it is reading
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before the kernel was told
        os._exit(1)
