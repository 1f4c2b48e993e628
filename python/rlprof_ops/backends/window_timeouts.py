"""How long a training step waits for its windows, as the job's knobs say."""

from __future__ import annotations

import os

from rlprof_ops import env_names

_DEFAULT_S = 20.0
_LEAST_S = 0.1  # nsys answers in 20 ms, and a wait of 0 would be none at all


def open_wait_s() -> float:
    """How long a step waits at most until its windows are open, in seconds."""
    return _seconds(env_names.OPEN_WAIT_SECONDS)


def close_wait_s() -> float:
    """How long a step waits at most until its windows are closed, in seconds."""
    return _seconds(env_names.CLOSE_WAIT_SECONDS)


def _seconds(variable: str) -> float:
    try:
        return max(_LEAST_S, float(os.environ.get(variable) or _DEFAULT_S))
    except ValueError:
        return _DEFAULT_S
