"""Commands of this machine that are run to their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlprof_ops.host import processes
from rlprof_ops.words import limit

_NOT_RUN = 127  # as a shell says it
_PAUSE_S, _KILLED_S = 0.1, 5.0
_TOOL_SECONDS = 60.0  # nvidia-smi's first call on a node without the persistence daemon starts every GPU


def finished(
    argv: Sequence[str], seconds: float, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Exit code and both outputs of a command without input. Raises OSError or ValueError when it cannot be
    started, `subprocess.TimeoutExpired` when it is not done in `seconds`.
    """
    return subprocess.run(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def run(
    argv: Sequence[str], seconds: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same; 127, and why in `stderr`, for a command that is none or is not done in time. Never raises."""
    try:
        return finished(argv, seconds, env)
    except subprocess.TimeoutExpired:
        reason = f"not done after {limit(seconds)}"
    except (OSError, ValueError) as error:  # ValueError: a word with a null character
        reason = str(error)
    return subprocess.CompletedProcess(argv, _NOT_RUN, "", reason)


def output_of(*argv: str, seconds: float = _TOOL_SECONDS) -> str:
    """What a tool prints; "" when it is not here, fails, or does not end in time."""
    done = run(argv, seconds)
    return done.stdout if done.returncode == 0 else ""


def logged(
    argv: Sequence[str],
    seconds: float,
    env: Mapping[str, str],
    log: Path,
    unless: Callable[[], bool] = lambda: False,
) -> int | None:
    """Exit code of a command in a session of its own, whose output goes to the end of `log`. None where it
    was not done in `seconds`, or `unless` held before: then it is ended, with all that it has started.

    Raises OSError when the log cannot be opened or the command not be started.
    """
    until = time.monotonic() + seconds
    with open(log, "ab") as output:
        process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while (code := process.poll()) is None and time.monotonic() < until and not unless():
            time.sleep(_PAUSE_S)
        return code
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to it and to what it has started. What a dead storage holds is not waited for."""
    for pid in processes.with_descendants(process.pid, of_all_threads=True):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_S)
