"""`rlprof harvest`: everything a job left, found, checked, named and listed."""

from __future__ import annotations

import math
import sys
import time

import click

from rlprof_ops.commands._jobs import job_argument
from rlprof_ops.errors import EXIT_INCOMPLETE


@click.command(short_help="List every planned capture of JOB with its report, or why not.")
@job_argument
@click.option("--json", "as_json", is_flag=True, help="Print the manifest instead of the table.")
@click.option("--no-recover", is_flag=True, help="Leave raw captures (.qdstrm) as they are.")
@click.option(
    "--inside",
    "content_budget_s",
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for looking inside reports with nsys; 0 checks only that each is whole.",
)
@click.option(
    "--until",
    "until_s",
    type=float,
    metavar="TIME",
    help="When whoever runs this ends it, in seconds since 1970: the manifest is written before, and says"
    " what there was no time for.",
)
@click.option("--watch", is_flag=True, help="Repeat while the job runs: print what has changed.")
@click.option(
    "--every", "every_s", default=30.0, show_default=True, metavar="SECONDS", help="How often --watch looks."
)
@click.option(
    "--archive",
    is_flag=True,
    help="Also write archives/<node>.tar.zst, one a node, to take away from a slow file system.",
)
def command(
    job: str,
    as_json: bool,
    no_recover: bool,
    content_budget_s: float,
    until_s: float | None,
    watch: bool,
    every_s: float,
    archive: bool,
) -> None:
    """List every planned capture of JOB (a run folder or a job id) with its report, or why it is missing.

    Writes manifest.json into the run folder; safe to repeat. Ends with 3 when a planned report is missing.

    Example: rlprof harvest 4711
    """
    from rlprof_ops.collect.harvest.manifest_table import printable, render
    from rlprof_ops.collect.harvest.node_archives import archive_nodes
    from rlprof_ops.collect.harvest.run_harvest import harvest
    from rlprof_ops.collect.harvest.watch import watch_job
    from rlprof_ops.commands._progress import bar
    from rlprof_ops.job.run_folder import run_folder
    from rlprof_ops.words import size

    folder = run_folder(job)
    if watch:
        watch_job(folder, every_s=max(1.0, every_s), say=lambda text: click.echo(text, err=as_json))
    with bar(sys.stderr, "reports") as progress:
        manifest = harvest(
            folder,
            recover=not no_recover,
            progress=progress,
            content_budget_s=content_budget_s,
            within_s=math.inf if until_s is None else until_s - time.time(),
        )
    if as_json:
        click.echo(manifest.to_json(), nl=False)
    else:
        click.echo(render(manifest))
        click.echo(f"manifest: {folder / 'manifest.json'}")
    if archive:
        for path, size_bytes in archive_nodes(folder, manifest):
            click.echo(f"archive: {folder / printable(path)} ({size(size_bytes)})", err=as_json)
    if not manifest.complete:
        sys.exit(EXIT_INCOMPLETE)
