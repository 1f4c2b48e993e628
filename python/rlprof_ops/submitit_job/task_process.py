"""One node's supervisor as the child of a submitit task: out of reach of its signals, gone in order when
the task dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.job.end_cause import exit_status
from rlprof_ops.job.knobs import home

_PAUSE_S = 0.1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class TaskProcess:
    """`scripts/node.sh` in a session of its own: submitit's USR2 goes to the task's group, and would end
    Ray.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        libc = ctypes.CDLL(None)  # loaded before the fork
        parent = os.getpid()

        def drain_without_parent() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        argv = ["bash", str(home() / "scripts" / "node.sh")]
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


def python_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Make node.sh use this interpreter, unless the knobs name another."""
    from rlprof_ops.job.knobs import import_path

    path = os.pathsep.join(filter(None, [import_path(), env.get("PYTHONPATH", "")]))
    more = {"PYTHONPATH": path, env_names.HOME: str(home())}
    if not env.get("RLPROF_VENV") and not env.get("RLPROF_PYTHON"):
        more["RLPROF_PYTHON"] = sys.executable
        more["PATH"] = os.pathsep.join(
            [str(Path(sys.executable).parent), env.get("PATH", os.defpath)]
        )  # for COMMAND='python …'
    return {**env, **more}
