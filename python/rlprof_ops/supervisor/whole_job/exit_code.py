"""The exit code of a job: the driver's, or what ended the job before the driver did."""

from __future__ import annotations

from rlprof_ops.errors import EXIT_FAILED, RlprofError
from rlprof_ops.job.end_cause import SIGNAL_EXIT, EndCause


def exit_status(returncode: int) -> int:
    """A shell's view of a return code: 128 + n for a process that signal n ended."""
    return returncode if returncode >= 0 else 128 - returncode


def of_job(told: EndCause | None, driver: int | None, has_driver: bool) -> tuple[EndCause, int]:
    """Why a job ends, and with which exit code.

    Args:
        told: the order to end, when there was one.
        driver: the driver's exit status, None while it runs.
        has_driver: False for a cluster that waits for people to attach; an order is its natural end.
    """
    if driver is not None:
        if told is not None and driver in SIGNAL_EXIT.values():  # Slurm signalled it and us at once
            return told, SIGNAL_EXIT.get(told, 143)
        return EndCause.DRIVER_EXIT, driver
    if told is not None:
        return told, SIGNAL_EXIT.get(told, 143) if has_driver else 0
    return EndCause.NODE_LOST, EXIT_FAILED  # Ray's head ended by itself


def of_bad_takeover() -> tuple[EndCause, int]:
    """The same where a supervisor could not go on in the place of one that was killed."""
    return EndCause.NODE_LOST, EXIT_FAILED


def of_bad_start(error: RlprofError) -> tuple[EndCause, int]:
    """The same for a job whose cluster did not come up."""
    return EndCause.STARTUP_FAILED, getattr(error, "exit_code", EXIT_FAILED)
