"""Waiting for a job's end, with the manifest's table and an exit code as a person expects them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click

from rlprof_ops.errors import EXIT_FAILED, EXIT_INCOMPLETE, RlprofError

_INTERRUPTED = 130


def wait_for(job: str, folder: Path, *, as_json: bool = False, deadline_s: float | None = None) -> int:
    """Follow to the end, print the table. Gives the job's exit code; 3 where that is 0 and a planned
    report is missing.
    """
    from rlprof_ops.operate.follow import current, follow, shower
    from rlprof_ops.operate.why import why

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    try:
        with shower(say, sys.stderr if as_json else sys.stdout) as show:
            view = follow(job, folder, show, deadline_s=deadline_s)
    except KeyboardInterrupt:
        say(f"\nno longer watching; job {job} goes on. rlprof status {job}, rlprof stop {job}")
        return _INTERRUPTED
    ended = current(job, folder)
    if as_json:
        click.echo(json.dumps(view.to_dict()))
    elif view.over:
        show_end(ended.run)
        say(f"job {job}: {view.line()}")
    for line in why(ended, view):
        say(line)
    if not view.over:
        say(f"job {job}: {view.line()}")
        return EXIT_FAILED
    return view.exit_code or (EXIT_INCOMPLETE if view.lacks_reports else 0)


def show_end(run: Path | None) -> bool | None:
    """The manifest's table, or why there is none. Gives whether it is complete; None without a manifest."""
    from rlprof_ops.collect.harvest.manifest import Manifest
    from rlprof_ops.collect.harvest.manifest_table import printable_lines, render

    if run is None:
        click.echo("the job left no run folder")
        return None
    if not (run / "run.json").exists():
        click.echo(f"run folder: {run}; the job ended before its cluster began, so nothing was captured")
        return None
    try:
        manifest = Manifest.load(run)
    except RlprofError as error:
        click.echo(printable_lines(str(error)))
        return None
    click.echo(render(manifest))
    click.echo(f"manifest: {run / 'manifest.json'}")
    made = (run / "report.html").is_file()
    click.echo(
        f"report:   {run / 'report.html'}"
        if made
        else f"report:   not made by the job; rlprof report {shlex.quote(str(run))}"
    )
    return manifest.complete
