"""A job has its driver's exit code, unless something else ended it first."""

from __future__ import annotations

import pytest

from rlprof_ops.errors import EXIT_FAILED, RlprofError, UsageError
from rlprof_ops.job.end_cause import EndCause, exit_status, why_job_ends
from rlprof_ops.supervisor.head import why_start_ends
from rlprof_ops.supervisor.node.node_state import ToldToEnd


@pytest.mark.parametrize(
    ("told", "driver", "has_driver", "expected"),
    [
        (None, 0, True, (EndCause.DRIVER_EXIT, 0)),
        (None, 7, True, (EndCause.DRIVER_EXIT, 7)),
        (None, 143, True, (EndCause.DRIVER_EXIT, 143)),  # somebody killed it, but nobody ended the job
        (EndCause.SIGNAL, None, True, (EndCause.SIGNAL, 143)),
        (EndCause.SIGNAL, 143, True, (EndCause.SIGNAL, 143)),
        (EndCause.TIME_LIMIT, None, True, (EndCause.TIME_LIMIT, 140)),
        (EndCause.TIME_LIMIT, 140, True, (EndCause.TIME_LIMIT, 140)),
        (EndCause.SIGNAL, 0, True, (EndCause.DRIVER_EXIT, 0)),  # it was done just before
        (EndCause.SIGNAL, None, False, (EndCause.SIGNAL, 0)),  # a cluster that waited for people
        (None, None, True, (EndCause.NODE_LOST, EXIT_FAILED)),
    ],
)
def test_why_a_job_ends(told, driver, has_driver, expected):
    assert why_job_ends(told, driver, has_driver) == expected


def test_a_start_that_failed_has_its_errors_code():
    assert why_start_ends(RlprofError("no Ray")) == (EndCause.STARTUP_FAILED, EXIT_FAILED)
    bad = UsageError("no such folder")
    assert why_start_ends(bad) == (EndCause.STARTUP_FAILED, bad.exit_code)


def test_a_start_that_was_told_to_end_is_no_failed_start():
    assert why_start_ends(ToldToEnd(EndCause.SIGNAL, "it was up")) == (EndCause.SIGNAL, 143)
    assert why_start_ends(ToldToEnd(EndCause.TIME_LIMIT, "it was up")) == (EndCause.TIME_LIMIT, 140)


def test_a_signal_is_counted_as_a_shell_does():
    assert [exit_status(code) for code in (0, 7, -9)] == [0, 7, 137]
