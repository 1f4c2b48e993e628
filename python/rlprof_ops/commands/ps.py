"""`rlprof ps`: my jobs, with what becomes of their captures; or what ran below a folder, and how it went."""

from __future__ import annotations

import json
from pathlib import Path

import click

_NUMBERS = ("nodes", "step", "steps", "median step", "findings", "exit code")


@click.command(short_help="List your jobs and where each stands, or the runs below FOLDER.")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option(
    "--all", "all_jobs", is_flag=True, help="Also jobs that have ended, as far as rlprof submitted them."
)
@click.option("--json", "as_json", is_flag=True, help="As a JSON list.")
def command(folder: Path | None, all_jobs: bool, as_json: bool) -> None:
    """List your jobs that wait or run, and where each stands.

    With FOLDER, the runs below it, whoever's they are, the latest first: steps, step time, what was found,
    and how each ended.

    Example: rlprof ps logs/
    """
    from rlprof_ops.collect.harvest.manifest_table import grid, printable
    from rlprof_ops.operate import job_list, run_list
    from rlprof_ops.words import counted

    denied: list[Path] = []
    columns: tuple[str, ...]
    if folder is None:
        columns, views = job_list.COLUMNS, job_list.views(ended_too=all_jobs)
        found, rows = [view.to_dict() for view in views], [job_list.row(view) for view in views]
        none = "no job of yours waits or runs" + ("" if all_jobs else " (--all lists ended ones too)")
    else:
        columns, (below, denied) = run_list.COLUMNS, run_list.runs(folder)
        found, rows = [run.to_dict() for run in below], [run_list.row(run) for run in below]
        none = f"no run folder below {folder}"
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(grid(columns, rows, right=_NUMBERS)) if rows else none)
    if denied:
        names = printable(", ".join(map(str, denied)))
        click.echo(
            f"left out, since they may not be read, {counted(len(denied), 'folder')}: {names}", err=True
        )
