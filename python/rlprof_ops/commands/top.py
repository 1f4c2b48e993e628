"""`rlprof top`: a running job, live in the terminal."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from rlprof_ops.commands._jobs import job_argument


@click.command(short_help="Show what JOB does now: nodes, GPUs, steps, phases.")
@job_argument
@click.option("--once", is_flag=True, help="Print it once and end.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object, once.")
@click.option(
    "--every",
    "every_s",
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0.5, 3600),
    help="Between two looks.",
)
def command(job: str, once: bool, as_json: bool, every_s: float) -> None:
    """Show what JOB does now: nodes, GPUs, the step and phase of every role, step times, slowest ranks, open
    windows, and what the recorder has found.

    Example: rlprof top 4711
    """
    from rlprof_ops.job.run_folder import run_folder
    from rlprof_ops.operate.recorded import read_summary

    run = run_folder(job)
    if as_json:
        click.echo(json.dumps(read_summary(run).data))
        return
    from rich.console import Console

    console = Console()
    if once or not sys.stdout.isatty():
        console.print(_view(read_summary(run)))
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, screen=True) as live:
        try:
            while True:
                live.update(_view(read_summary(run)), refresh=True)
                time.sleep(every_s)
        except KeyboardInterrupt:
            return


def _view(recorded: Any) -> Any:
    """The lines and tables, for rich; every value as text, never as markup."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from rlprof_ops.operate.recorded import headline, tables

    parts: list[Any] = [Text(line) for line in headline(recorded)]
    for table in tables(recorded):
        shown = Table(box=None, pad_edge=False)
        for name in table.columns:
            shown.add_column(Text(name, style="bold"))
        for row in table.rows:
            shown.add_row(*(Text(cell) for cell in row))
        parts += [Text(""), Text(table.title, style="bold underline"), shown]
        if table.more:
            parts.append(Text(table.more, style="dim"))
    return Group(*parts)
