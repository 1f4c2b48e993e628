"""The process that Slurm knows as a node's task. It runs the supervisor as its child, and another one when
that is killed while the job runs.

Slurm ends what is left of a task that is gone, so the task has to be a process that nothing happens to: it
waits, hands on the signals it gets, and takes in what loses its parent (PR_SET_CHILD_SUBREAPER, man 2 prctl).
So Ray and the driver outlive the supervisor that started them, and the driver's exit code is known to the
next one. That is forked from here too, with everything imported: storage that hangs does not keep it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from types import FrameType

from rlprof_ops.supervisor.takeover.reins import SERVES, Inherited, Reins

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
_PAUSE_S = 0.5
_MOST_DEATHS, _WITHIN_S = 3, 60.0
_MOST_EXITS = 4096  # of orphans whose exit codes are known to the next supervisor


class Keeper:
    """One node's task."""

    def __init__(self) -> None:
        self._child = 0
        self._told = 0  # the signal that orders the end
        self._exits: dict[int, int] = {}
        self._tell = -1
        self._deaths: deque[float] = deque(maxlen=_MOST_DEATHS)

    def keep(self, run: Callable[[Reins], int]) -> int:
        """Run the supervisor to the end of the job, once more where it is killed before. `run` is called in a
        child, which ends with its value. The exit code of the last one; does not return where that was
        killed by a signal, which ends this process too.
        """
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in _HANDED_ON:
            signal.signal(number, self._hand_on)
        inherited: Inherited | None = None
        while True:
            code, serves = self._run_one(run, inherited)
            if not serves or self._told or not self._may_go_on():
                return code if code >= 0 else _die_of(-code)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            sys.stderr.write(f"[rlprof] the supervisor {how} while the job runs: another one takes over\n")
            sys.stderr.flush()
            time.sleep(_PAUSE_S)
            if self._told:
                return code if code >= 0 else _die_of(-code)
            self._reap()
            inherited = Inherited(how, dict(self._exits), -1)

    def _run_one(self, run: Callable[[Reins], int], inherited: Inherited | None) -> tuple[int, bool]:
        """The exit code of one supervisor, negative for a signal; whether the job ran when it ended."""
        state, says = os.pipe()
        exits, self._tell = os.pipe() if inherited is not None else (-1, -1)
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
        gc.freeze()  # what both have in common stays in common
        self._child = os.fork()
        if not self._child:
            for end in (state, self._tell):
                if end >= 0:
                    os.close(end)
            if inherited is not None:
                inherited = Inherited(inherited.how, inherited.exits, exits)
            _be(run, Reins(says, inherited))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
        os.close(says)
        if exits >= 0:
            os.close(exits)
            os.set_blocking(self._tell, False)
        try:
            code = self._wait()
            said = b""
            while chunk := _read(state):
                said += chunk
        finally:
            os.close(state)
            if self._tell >= 0:
                os.close(self._tell)
            self._child, self._tell = 0, -1
        return code, said.endswith(SERVES)

    def _wait(self) -> int:
        """Until the supervisor has ended; whoever else ends meanwhile is taken in."""
        while True:
            pid, status = os.waitpid(-1, 0)
            code = os.waitstatus_to_exitcode(status)
            if pid == self._child:
                return code
            self._note(pid, code)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self._note(pid, os.waitstatus_to_exitcode(status))

    def _note(self, pid: int, code: int) -> None:
        self._exits.pop(pid, None)
        self._exits[pid] = code
        while len(self._exits) > _MOST_EXITS:
            del self._exits[next(iter(self._exits))]
        if self._tell >= 0:
            with contextlib.suppress(OSError):  # it is gone, or does not listen
                os.write(self._tell, f"{pid} {code}\n".encode())

    def _may_go_on(self) -> bool:
        """Whether the supervisors do not die one after the other."""
        self._deaths.append(time.monotonic())
        return len(self._deaths) < _MOST_DEATHS or self._deaths[-1] - self._deaths[0] > _WITHIN_S

    def _hand_on(self, number: int, _frame: FrameType | None) -> None:
        self._told = number
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)


def _be(run: Callable[[Reins], int], reins: Reins) -> None:
    """In the child: run the supervisor, and end. No thread that hangs in a call to storage may keep the
    node's step from ending.
    """
    code = 1
    try:
        for number in _HANDED_ON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
        code = run(reins)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_of(number: int) -> int:
    """End as the supervisor did, so that Slurm tells the same."""
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to take away
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _read(state: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        os.set_blocking(state, False)
        return os.read(state, 4096)
    return b""
