"""The one kind of error that a person can fix: printed without a traceback, with a documented exit code."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3  # a planned report is missing, or nothing could be read
EXIT_UNJUDGED = 4


class RlprofError(Exception):
    """Something the user can fix. `exit_code` is what the command line ends with."""

    exit_code = EXIT_FAILED


class UsageError(RlprofError):
    """A wrong argument, request or knob, found before anything was started."""

    exit_code = EXIT_USAGE
