"""Commands of this machine that are run to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlprof_ops.words import limit

_NOT_RUN = 127  # as a shell says it
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
