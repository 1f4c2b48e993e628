"""The process that Slurm knows as a node's task. It runs the supervisor as its child, and another one where
that dies before the node's part of the job is done.

Slurm ends what is left of a task that is gone, so the task has to be a process that nothing happens to: it
waits, keeps an order to end and hands it on, and starts the driver, whose exit code it then knows whatever
becomes of the supervisor. The next one is forked from here as the first was, with everything imported:
storage that hangs does not keep it. Signals are blocked in all of them but where they are waited for, so none
meets its default.

It takes in no other orphan (PR_SET_CHILD_SUBREAPER): the agents of nsys leave their parents behind, and
below the task a signal of Slurm's to all of the step would reach them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from rlprof_ops.host import processes
from rlprof_ops.supervisor.node.node_state import CAUSES, NodeState
from rlprof_ops.words import limit

NAME, NAME_OF_CHILD = b"rlprof-keeper", b"rlprof-superv"  # as ps and top show them
START_DRIVER = signal.SIGUSR1
SIGNALS = frozenset({*CAUSES, START_DRIVER, signal.SIGCHLD})
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # linux/prctl.h
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # before another one; doubled where they die one after the other
_QUICK_S, _MOST_QUICK = 10.0, 10  # so soon after its start, and so often in a row: it is no use
_MOST_FAULTS = 3  # the same, for one that nobody has killed


class Keeper:
    """One node's task. `say` writes to the job's output; `give_up` ends what a last supervisor has left."""

    def __init__(
        self,
        node: str,
        state: NodeState,
        give_up: Callable[[], None] = lambda: None,
        most_quick: int = _MOST_QUICK,
    ) -> None:
        self._node, self._state, self._give_up, self._most_quick = node, state, give_up, most_quick
        self._supervisor = 0
        self._driver: subprocess.Popen[bytes] | None = None
        self._driver_began = 0
        self._told_to_end = 0  # by this signal, the first one

    def keep(self, supervise: Callable[[str], int]) -> int:
        """Run supervisors until one has ended by itself: its exit code. `supervise` is called in a child with
        how the one before it ended, "" for the first.

        Where they die one after the other the task ends as the last one did.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME)
        how, quick = "", 0
        while True:
            began = time.monotonic()
            code, done = self._run_one(supervise, how)
            if done:
                return code
            quick = quick + 1 if how and time.monotonic() - began < _QUICK_S else 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if quick >= (self._most_quick if code < 0 else min(_MOST_FAULTS, self._most_quick)):
                _say(
                    f"node {self._node}: the supervisor {how}, number {quick} in a row within"
                    f" {limit(_QUICK_S)} of its start: the node's task ends. Reasons stand in logs/ of the"
                    f" run folder ({self._node}.log, of the head head.log)"
                )
                self._give_up()
                return code if code >= 0 else _die_of(-code)
            _say(f"node {self._node}: the supervisor {how}: another one takes over")
            self._pause(min(_PAUSE_S * 2**quick, _LONGEST_PAUSE_S))

    def _run_one(self, supervise: Callable[[str], int], how: str) -> tuple[int, bool]:
        """The exit code of one supervisor, negative for a signal, and whether it ended by itself."""
        done, tell_done = os.pipe()
        gc.freeze()  # what both have in common stays in common
        keeper = os.getpid()
        self._supervisor = os.fork()
        if not self._supervisor:
            os.close(done)
            _supervise(supervise, how, keeper, tell_done)
        os.close(tell_done)
        self._tell_supervisor(self._told_to_end)  # the folder that keeps the order may take no files
        try:
            while (code := self._reap()) is None:
                self._heed(signal.sigwaitinfo(SIGNALS).si_signo)
            return code, bool(os.read(done, 1))
        finally:
            os.close(done)
            self._supervisor = 0

    def _pause(self, seconds: float) -> None:
        """Wait, but no longer once the job is told to end: that is for the next supervisor to do."""
        until = time.monotonic() + seconds
        while not self._told_to_end and (left := until - time.monotonic()) > 0:
            if (got := signal.sigtimedwait(SIGNALS, left)) is not None:
                self._heed(got.si_signo)
                self._reap()

    def _heed(self, number: int) -> None:
        if number == START_DRIVER:
            self._start_driver()
        elif number in CAUSES:
            self._told_to_end = self._told_to_end or number
            self._state.order_end(CAUSES[signal.Signals(number)])
            self._tell_supervisor(number)

    def _tell_supervisor(self, number: int) -> None:
        if self._supervisor and number:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._supervisor, number)

    def _reap(self) -> int | None:
        """Take note of who has ended; the supervisor's exit code, once it has one."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return None
                code = os.waitstatus_to_exitcode(status)
                if pid == self._supervisor:
                    return code
                if self._driver is not None and pid == self._driver.pid:
                    self._state.driver.write(pid=pid, started=self._driver_began, code=code)
        return None

    def _start_driver(self) -> None:
        if self._driver is not None or not (asked := self._state.take_driver_request()):
            return
        try:
            with open(asked["log"], "ab") as output:
                self._driver = subprocess.Popen(
                    asked["argv"],
                    env=asked["env"],
                    cwd=asked["cwd"],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_unblock,  # we are one thread
                )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._state.driver.write(failed=str(error))
            return
        self._driver_began = processes.start_time(self._driver.pid) or 0
        self._state.driver.write(pid=self._driver.pid, started=self._driver_began)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _supervise(supervise: Callable[[str], int], how: str, keeper: int, tell_done: int) -> None:
    """In the child: run the supervisor, and end. No thread that hangs in a call to storage may keep the
    node's step from ending.
    """
    code = 1
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_NAME, NAME_OF_CHILD)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # without a keeper the job ends in order
        if os.getppid() != keeper:
            os.kill(os.getpid(), signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, START_DRIVER})
        code = supervise(how)
        os.write(tell_done, b"1")
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"[rlprof] {text}\n")
        sys.stderr.flush()


def _die_of(number: int) -> int:
    """End as the supervisor did, so that Slurm tells the same."""
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to take away
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
