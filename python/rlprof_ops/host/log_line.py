"""What a process of ours says on stderr, beside the training."""

from __future__ import annotations

import sys


def log(message: str) -> None:
    """One line on stderr, where Ray and Slurm collect it; never raises: stderr may be closed at exit, and
    a signal may come while it is written to.
    """
    try:
        sys.stderr.write(f"[rlprof] {message}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError, RuntimeError):
        pass


_said: set[str] = set()


def log_once(message: str, key: str = "") -> None:
    """`log`, but a process says the same thing (all messages of one `key`, when there is one) only once."""
    if (key or message) not in _said:
        _said.add(key or message)
        log(message)
