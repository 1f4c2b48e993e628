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
    help="Time to drain, then the job is cancelled; and as much for its harvest.",
)
def command(job: str, patience: float) -> None:
    """Tell JOB to drain, wait until it has ended, and cancel it when it does not; then print its captures.

    Ends with 0, or with 3 when a planned report is missing.

    Example: rlprof stop 4711
    """
    from rlprof_ops.commands._waiting import show_end
    from rlprof_ops.errors import EXIT_INCOMPLETE
    from rlprof_ops.job import harvest_job
    from rlprof_ops.job.run_folder import find
    from rlprof_ops.operate.end_job import stop
    from rlprof_ops.operate.follow import Lines, follow

    known = find(job)
    how = stop(known, patience, click.echo)
    if how == "cancelled":
        return
    after = find(str(known.run) if known.run else job)
    if after.run is not None and harvest_job.to_come(after.run) is not None:
        view = follow(after.id, after.run, Lines(click.echo), deadline_s=patience)
        if not view.over:
            click.echo(f"job {after.id}: {view.line()}; rlprof status {after.id}")
            return
    if show_end(after.run) is False:
        sys.exit(EXIT_INCOMPLETE)
