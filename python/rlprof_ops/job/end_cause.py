"""Why a job ended, and with which exit code: one list for supervisors, run.json, harvest and commands."""

from __future__ import annotations

import enum

from rlprof_ops.errors import EXIT_FAILED


class EndCause(str, enum.Enum):
    """`end.cause` of run.json; the last three are a worker node's own, and never written there."""

    RUNNING = "running"
    DRIVER_EXIT = "driver_exit"
    SIGNAL = "signal"
    TIME_LIMIT = "time_limit"
    NODE_LOST = "node_lost"
    HANG = "hang"
    STARTUP_FAILED = "startup_failed"
    ORDERED = "ordered"
    HEAD_GONE = "head_gone"
    RAY_GONE = "ray_gone"

    def __str__(self) -> str:
        return self.value


# Where `end.detail` begins with it, nobody told the job to end: its supervisors were killed.
STEP_KILLED = "the step that held the cluster was killed"
# 128 + SIGTERM and 128 + SIGUSR2, as a shell says it.
SIGNAL_EXIT = {EndCause.SIGNAL: 143, EndCause.TIME_LIMIT: 140}
# Exit codes of a job that was told to end; 75 is EX_TEMPFAIL of sysexits.h, which a requeue can follow.
ORDER_EXIT = {**SIGNAL_EXIT, EndCause.HANG: 75}


def exit_status(returncode: int) -> int:
    """A shell's view of a return code: 128 + n for a process that signal n ended."""
    return returncode if returncode >= 0 else 128 - returncode


def why_job_ends(order: EndCause | None, driver: int | None, has_driver: bool) -> tuple[EndCause, int]:
    """Why a job that was up ends, and with which exit code.

    Args:
        order: the order to end, when there was one.
        driver: the driver's exit status, None while it runs.
        has_driver: False for a cluster that waits for people to attach; an order is its natural end.
    """
    if driver is not None:
        if order is not None and driver in SIGNAL_EXIT.values():  # Slurm signalled it and us at once
            return order, ORDER_EXIT.get(order, 143)
        return EndCause.DRIVER_EXIT, driver
    if order is not None:
        return order, ORDER_EXIT.get(order, 143) if has_driver or order is EndCause.HANG else 0
    return EndCause.NODE_LOST, EXIT_FAILED  # Ray's head ended by itself
