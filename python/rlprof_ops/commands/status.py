"""`rlprof status`: how a job stands."""

from __future__ import annotations

import json
import sys

import click

from rlprof_ops.commands._jobs import job_argument


@click.command(short_help="Print where JOB stands: nodes, step, captures, how it ended.")
@job_argument
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def command(job: str, as_json: bool) -> None:
    """Print where JOB (a job id or a run folder) stands: nodes up, step, captures done of planned, how it
    ended.

    Ends with 0 while the job goes on or when all is well, 1 when it failed, 3 when a planned report is
    missing.

    Example: rlprof status 4711
    """
    from rlprof_ops.job.run_folder import find
    from rlprof_ops.operate.follow import rows
    from rlprof_ops.operate.job_status import look
    from rlprof_ops.operate.why import why

    found = find(job)
    view = look(found)
    if as_json:
        click.echo(json.dumps(view.to_dict()))
    else:
        click.echo(f"job {view.job}")
        for name, value in rows(view):
            click.echo(f"  {name:<10}  {value}")
        for number, line in enumerate(why(found, view)):
            click.echo(f"  {'' if number else 'why':<10}  {line}")
    sys.exit(view.exit_status())
