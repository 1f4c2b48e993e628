"""The argument by which every command names a job, how a shell completes it, and the job meant without it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

_MOST_COMPLETED = 20


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of my jobs that wait or run, then of remembered ones, newest first; a path as a folder."""
    from rlprof_ops.operate.job_list import ids

    if incomplete and not incomplete[0].isdigit():
        return [CompletionItem(incomplete, type="dir")]
    return [CompletionItem(job) for job in ids() if job.startswith(incomplete)][:_MOST_COMPLETED]


def latest(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """The job as typed, else my latest one, which is named on stderr."""
    if value is not None or ctx.resilient_parsing:
        return value or ""
    return latest_job()


def latest_job() -> str:
    """My latest job, named on stderr. Raises UsageError when none is known."""
    from rlprof_ops.errors import UsageError
    from rlprof_ops.operate.job_list import ids

    found = ids()
    if not found:
        raise UsageError(
            "no job of yours is known here: give a job id or a run folder, as in: rlprof status 4711"
        )
    click.echo(f"job {found[0]}, your latest", err=True)
    return found[0]


def latest_if_sure(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """As `latest`, for what cannot be undone: a person is asked, a script has to name the job."""
    if value is not None or ctx.resilient_parsing:
        return value or ""
    job = latest_job()
    if not sys.stdin.isatty():
        raise click.UsageError(f"name the job, as in: {ctx.command_path} {job}", ctx)
    click.confirm(f"{ctx.info_name} job {job}?", abort=True, err=True)
    return job


def job_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """`JOB`: a job id, or a run folder; my latest job without it."""
    return click.argument("job", required=False, callback=latest, shell_complete=complete)(function)


def run_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same under the name `run`, for a command that reads any folder of reports."""
    return click.argument("run", metavar="[JOB]", required=False, callback=latest, shell_complete=complete)(
        function
    )


def job_argument_asked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a command that ends something."""
    return click.argument("job", required=False, callback=latest_if_sure, shell_complete=complete)(function)
