"""`rlprof runs`: what ran below a folder of logs, and how it went."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As a JSON list.")
def command(folder: Path, as_json: bool) -> None:
    """List the runs below FOLDER, the latest first.

    FOLDER is here by default. A run shows its steps, its step time, what was found, and how it ended.

    Example: rlprof runs logs/
    """
    from rlprof_ops.collect.harvest.manifest_table import grid
    from rlprof_ops.operate.runs import COLUMNS, row, runs

    found = runs(folder)
    if as_json:
        click.echo(json.dumps([run.to_dict() for run in found]))
    elif found:
        right = ("nodes", "steps", "median step", "findings", "exit code")
        click.echo("\n".join(grid(COLUMNS, [row(run) for run in found], right=right)))
    else:
        click.echo(f"no run folder below {folder}")
