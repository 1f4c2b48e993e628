"""`rlprof stacks`: what the workers of a running job are doing now."""

from __future__ import annotations

import click

from rlprof_ops.commands._jobs import job_argument


@click.command(short_help="Print the Python stacks of the workers of the running JOB.")
@job_argument
@click.option("--workers", default="*", show_default=True, help="Patterns of worker names, with commas.")
@click.option("--ranks", default="all", show_default=True, help="Ranks with commas, or all.")
@click.option(
    "--timeout",
    "timeout_s",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait no longer for nodes.",
)
def command(job: str, workers: str, ranks: str, timeout_s: float) -> None:
    """Print the Python stacks of the workers of the running JOB, read from outside by py-spy: they need not
    answer.

    Example: rlprof stacks 4711 --workers '*policy*'
    """
    from rlprof_ops.collect.harvest.manifest_table import printable, printable_lines
    from rlprof_ops.commands.capture import ranks_of, split
    from rlprof_ops.job.run_folder import run_folder
    from rlprof_ops.operate.capture_request import stacks

    patterns, wanted = split(workers), ranks_of(ranks)
    for worker, text in stacks(run_folder(job), patterns, wanted, timeout_s):
        click.echo(click.style(printable(f"== {worker.name} on {worker.node}, pid {worker.pid}"), bold=True))
        click.echo(printable_lines(text.rstrip()) + "\n")
