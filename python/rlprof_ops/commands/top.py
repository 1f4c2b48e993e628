"""`rlprof top`: a running job, live in the terminal, or as a page for a browser."""

from __future__ import annotations

import json
import sys
from pathlib import Path
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
@click.option("--serve", is_flag=True, help="As a page on 127.0.0.1 instead, for whoever has its address.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Of --serve, on 127.0.0.1. Default: one that is free.",
)
def command(job: str, once: bool, as_json: bool, every_s: float, serve: bool, port: int) -> None:
    """Show what JOB does now: nodes, GPUs, the step and phase of every role, step times, slowest ranks, open
    windows, and what the recorder has found. q ends it.

    With --serve the ssh line for another machine is printed too; Ctrl-C ends it.

    Example: rlprof top 4711
    """
    from rlprof_ops.job.run_folder import run_folder
    from rlprof_ops.operate.recorded import read_summary

    run = run_folder(job)
    recorded = read_summary(run)
    if as_json:
        click.echo(json.dumps(recorded.data))
        return
    if serve:
        _serve(run, port, every_s)
        return
    from rich.console import Console

    console = Console()
    if once or not sys.stdout.isatty():
        console.print(_view(recorded))
        return
    from rich.live import Live

    from rlprof_ops.commands._keys import waiting_for_q

    with Live(console=console, auto_refresh=False, screen=True) as live, waiting_for_q() as pressed:
        try:
            while True:
                live.update(_view(read_summary(run)), refresh=True)
                if pressed(every_s):
                    return
        except KeyboardInterrupt:
            return


def _serve(run: Path, port: int, every_s: float) -> None:
    from rlprof_ops.analyze.browser import advice
    from rlprof_ops.errors import RlprofError
    from rlprof_ops.operate.live_server import LiveServer

    try:
        server = LiveServer(run, port, every_s)
    except OSError as error:
        raise RlprofError(
            f"--port {port}: cannot listen on 127.0.0.1:{port} ({error.strerror}). Give another, or none."
        ) from error
    with server:
        for line in advice(server.port, server.url):
            click.echo(line)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.ended.set()
            click.echo("\nended")


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
