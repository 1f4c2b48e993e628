"""Why a window could not be taken, in the words of the manifest."""

from __future__ import annotations

from rlprof_ops.backends.contract import CaptureError


def failure_of(error: Exception) -> str:
    """What went wrong, with the file where the system names one."""
    if isinstance(error, CaptureError):
        return str(error)
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}"
    return f"{type(error).__name__}: {error}"
