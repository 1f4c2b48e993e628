"""A job has its driver's exit code, unless something else ended it first."""

from __future__ import annotations

import pytest

from rlprof_ops.errors import EXIT_FAILED, RlprofError, UsageError
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.supervisor.whole_job import exit_code


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
    assert exit_code.of_job(told, driver, has_driver) == expected


def test_a_start_that_failed_has_its_errors_code():
    assert exit_code.of_bad_start(RlprofError("no Ray")) == (EndCause.STARTUP_FAILED, EXIT_FAILED)
    bad = UsageError("no such folder")
    assert exit_code.of_bad_start(bad) == (EndCause.STARTUP_FAILED, bad.exit_code)


def test_a_signal_is_counted_as_a_shell_does():
    assert [exit_code.exit_status(code) for code in (0, 7, -9)] == [0, 7, 137]
