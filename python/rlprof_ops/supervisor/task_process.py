"""A node's task as the child of a process that is no node: out of reach of the signals of that one's group,
told to end when it is, gone in order when it dies. An order that is given before it listens waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

from rlprof_ops.job.end_cause import exit_status
from rlprof_ops.supervisor.node.node_state import CAUSES

_PAUSE_S = 0.1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class TaskProcess:
    """`argv` in a session of its own: submitit's USR2 goes to the task's group, and would end Ray."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        libc = ctypes.CDLL(None)  # loaded before the fork
        parent = os.getpid()

        def drain_without_parent() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, CAUSES)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        self._process = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=drain_without_parent,
        )

    @property
    def ended(self) -> bool:
        """Asked of the kernel and not of Popen, whose lock a signal handler would find held by the code it
        interrupted.
        """
        if self._process.returncode is not None:
            return True
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def tell(self, number: int) -> None:
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def wait(self, seconds: float | None = None) -> bool:
        """Until it has ended, or `seconds` are over. False when it still runs."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.ended:
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)
        return True

    def exit_code(self) -> int:
        """As a shell says it. Only after it has ended."""
        return exit_status(self._process.wait(timeout=10))


@contextlib.contextmanager
def handed_on(
    asks: Mapping[signal.Signals, signal.Signals], tell: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """Hand on what this process is told: `tell` gets, for each signal of `asks`, the one it stands for.
    Nothing outside the main thread, where signals are somebody else's.
    """

    def handler(number: int, frame: FrameType | None) -> None:
        tell(asks[signal.Signals(number)])

    try:
        before = {number: signal.signal(number, handler) for number in asks}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
