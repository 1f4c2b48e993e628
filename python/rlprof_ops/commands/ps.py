"""`rlprof ps`: my jobs, with what becomes of their captures."""

from __future__ import annotations

import json

import click


@click.command()
@click.option(
    "--all", "all_jobs", is_flag=True, help="Also jobs that have ended, as far as rlprof submitted them."
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON list.")
def command(all_jobs: bool, as_json: bool) -> None:
    """List your jobs that wait or run, and where each stands.

    Example: rlprof ps --all
    """
    from rlprof_ops.collect.harvest.manifest_table import grid
    from rlprof_ops.operate.job_list import COLUMNS, row, views

    found = views(ended_too=all_jobs)
    if as_json:
        click.echo(json.dumps([view.to_dict() for view in found]))
    elif found:
        click.echo("\n".join(grid(COLUMNS, [row(view) for view in found], right=("nodes", "step"))))
    else:
        click.echo("no job of yours waits or runs" + ("" if all_jobs else " (--all lists ended ones too)"))
