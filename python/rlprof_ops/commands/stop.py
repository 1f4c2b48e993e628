"""`rlprof stop`: ends a job in order, with its reports brought home."""

from __future__ import annotations

import sys

import click

from rlprof_ops.commands._jobs import job_argument_asked


@click.command(short_help="Tell JOB to drain, wait, and cancel it when it does not end.")
@job_argument_asked
@click.option(
    "--patience",
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Time to drain and harvest; then the job is cancelled.",
)
def command(job: str, patience: float) -> None:
    """Tell JOB to drain, wait until it has ended, and cancel it when it does not; then print its captures.

    Ends with 0, or with 3 when a planned report is missing.

    Example: rlprof stop 4711
    """
    from rlprof_ops.commands._waiting import show_end
    from rlprof_ops.errors import EXIT_INCOMPLETE
    from rlprof_ops.job.run_folder import find
    from rlprof_ops.operate.stop import stop

    known = find(job)
    how = stop(known, patience, click.echo)
    if how == "cancelled":
        return
    after = find(str(known.run) if known.run else job)
    if show_end(after.run) is False:
        sys.exit(EXIT_INCOMPLETE)
