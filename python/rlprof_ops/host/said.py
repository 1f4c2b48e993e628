"""What a tool of this machine says."""

from __future__ import annotations

import subprocess

_SECONDS = 60.0  # nvidia-smi's first call on a node without the persistence daemon starts every GPU


def said(*argv: str) -> str:
    """The output of a tool; "" when it is not here, fails, or does not end in time."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
