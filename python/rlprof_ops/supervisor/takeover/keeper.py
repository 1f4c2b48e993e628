"""The process that Slurm knows as a node's task. It runs the supervisor as its child, and another one when
that is killed while the job runs.

Slurm ends what is left of a task that is gone, so the task has to be a process that nothing happens to: it
waits, hands on the signals it gets, and starts the driver where it is asked to, whose exit code it then knows
whatever becomes of the supervisor. The next one is forked from here as the first was, with everything
imported: storage that hangs does not keep it.

It takes in no other orphan (PR_SET_CHILD_SUBREAPER): the agents of nsys leave their parents behind, and
below the task a signal of Slurm's to all of the step would reach them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from rlprof_ops.job.node_context import node_name
from rlprof_ops.supervisor.takeover.reins import Lines, Reins
from rlprof_ops.words import limit

NAME, NAME_OF_CHILD = b"rlprof-keeper", b"rlprof-superv"  # as ps and top show them
_PR_SET_NAME = 15  # linux/prctl.h
_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # before another one; doubled where they die one after the other
_QUICK_S, _MOST_QUICK = 10.0, 10  # so soon after its start, and so often in a row: it is no use
_BLOCK = 1 << 16


class Keeper:
    """One node's task."""

    def __init__(self, most_quick: int = _MOST_QUICK) -> None:
        self._most_quick = most_quick
        self._node = node_name(os.environ)
        self._child = 0
        self._told = 0  # the signal that orders the end
        self._exits: dict[int, int] = {}
        self._link: socket.socket | None = None
        self._lines = Lines()
        self._serves = False
        self._started: list[subprocess.Popen[bytes]] = []
        self._woken, wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wakes, False)
        self._wakes = wakes

    def keep(self, run: Callable[[Reins], int]) -> int:
        """Run the supervisor to the end of the job, once more where it is killed before. `run` is called in a
        child, which ends with its value. The exit code of the last one; does not return where that was
        killed by a signal, which ends this process too.
        """
        ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in _HANDED_ON:
            signal.signal(number, self._hand_on)
        how, quick = "", 0
        while True:
            began = time.monotonic()
            code = self._run_one(run, how)
            quick = quick + 1 if how and time.monotonic() - began < _QUICK_S else 0
            if not self._serves or self._told:
                return code if code >= 0 else _die_of(-code)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if quick >= self._most_quick:
                _say(
                    f"node {self._node}: the supervisor {how}, number {quick} in a row within"
                    f" {limit(_QUICK_S)} of its start: the node's task ends. Reasons stand in logs/ of the"
                    f" run folder ({self._node}.log, of the head head.log)"
                )
                return code if code >= 0 else _die_of(-code)
            _say(f"node {self._node}: the supervisor {how} while the job runs: another one takes over")
            self._pause(min(_PAUSE_S * 2**quick, _LONGEST_PAUSE_S))

    def _pause(self, seconds: float) -> None:
        """Wait, but no longer once the job is told to end: that is for the next supervisor to do."""
        until = time.monotonic() + seconds
        while not self._told and (left := until - time.monotonic()) > 0:
            select.select([self._woken], [], [], left)
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, _BLOCK)

    def _run_one(self, run: Callable[[Reins], int], how: str) -> int:
        """The exit code of one supervisor, negative for a signal. `how` the one before ended; "" for none."""
        self._reap()
        ours, theirs = socket.socketpair()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)
        gc.freeze()  # what both have in common stays in common
        self._child = os.fork()
        if not self._child:
            ours.close()
            _be(run, Reins(theirs, how, dict(self._exits), self._told))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
        theirs.close()
        self._link, self._lines = ours, Lines()
        self._serves = bool(how)  # what it takes over can be taken over from it
        try:
            return self._wait()
        finally:
            self._hear()
            ours.close()
            self._child, self._link = 0, None

    def _wait(self) -> int:
        """Until the supervisor has ended; meanwhile do what it asks."""
        assert self._link is not None
        both: list[int] = [self._woken, self._link.fileno()]
        while (code := self._reap()) is None:
            select.select(both, [], [], 60)
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, _BLOCK)
            if not self._hear():  # it has closed its end: it is ending
                select.select([self._woken], [], [], 0.05)
        return code

    def _reap(self) -> int | None:
        """Take note of who has ended; the supervisor's own exit code, once it has one."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return None
                code = os.waitstatus_to_exitcode(status)
                if pid == self._child:
                    return code
                self._exits[pid] = code
                self._tell({"ended": pid, "code": code})
        return None

    def _hear(self) -> bool:
        """Do what the supervisor asks; False when it asks nothing any more."""
        assert self._link is not None
        for asked in self._lines.read(self._link):
            self._do(asked)
        return self._lines.open

    def _do(self, asked: dict[str, Any]) -> None:
        if "serves" in asked:
            self._serves = bool(asked["serves"])
        elif "start" in asked:
            try:
                with open(asked["log"], "ab") as output:
                    process = subprocess.Popen(
                        asked["start"],
                        env=asked["env"],
                        cwd=asked["cwd"],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        restore_signals=True,
                    )
            except (OSError, ValueError) as error:
                self._tell({"failed": str(error)})
                return
            self._started.append(process)
            self._tell({"started": process.pid})

    def _tell(self, message: dict[str, Any]) -> None:
        if self._link is None:
            return
        with contextlib.suppress(OSError):  # it is gone; the next one inherits what is known
            self._link.sendall(json.dumps(message).encode() + b"\n")

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
        ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME_OF_CHILD)
        signal.set_wakeup_fd(-1)
        for number in (*_HANDED_ON, signal.SIGCHLD):
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


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"[rlprof] {text}\n")
        sys.stderr.flush()


def _die_of(number: int) -> int:
    """End as the supervisor did, so that Slurm tells the same."""
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to take away
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
