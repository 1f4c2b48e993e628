"""`rlprof timeline`: all ranks of a run on one timeline, for ui.perfetto.dev or a Perfetto of your own."""

from __future__ import annotations

from pathlib import Path

import click

from rlprof_ops.commands._jobs import run_argument


@click.command(short_help="Put all ranks of JOB on one timeline.")
@run_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write to. Default: the run folder; of other reports the current one.",
)
@click.option(
    "--legacy-json", is_flag=True, help="Also write one merged JSON for viewers older than Perfetto v58.2."
)
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), help="How many files are read at once. Default: one a CPU."
)
@click.option(
    "--no-cache",
    is_flag=True,
    help="Neither use nor write the Parquet columns beside the reports of a run folder.",
)
def command(run: str, output: Path | None, legacy_json: bool, jobs: int | None, no_cache: bool) -> None:
    """Put all ranks of JOB (a job id, or a folder of reports) on one timeline.

    Writes timeline.overview.pftrace (steps, phases, collectives, GPU busy, longest kernels of all ranks,
    requests of engines; small at any number of ranks) and timeline.ranks.zip (every full trace, clocks
    aligned; needs Perfetto v58.2 or later).

    Example: rlprof timeline logs/4711-logs
    """
    from rlprof_ops.analyze.output.text import counted, duration, size
    from rlprof_ops.analyze.reporting import render_again
    from rlprof_ops.analyze.timeline.make import make
    from rlprof_ops.collect.harvest.manifest_table import printable
    from rlprof_ops.job.own_files import output_folder
    from rlprof_ops.job.run_folder import folder_of

    folder = folder_of(run)
    made = make(folder, output, jobs, legacy_json, cache=not no_cache)
    render_again(output_folder(folder, output), folder)
    for path in made.files:
        click.echo(f"{path}  {size(path.stat().st_size)}")
    for name, reason in made.left_out:
        click.echo(printable(f"left out: {name}: {reason}"), err=True)
    residual = "unknown between hosts" if made.residual_ns is None else duration(made.residual_ns)
    click.echo(
        f"{counted(made.ranks, 'rank')}, clocks aligned with a residual that is {residual}. Open the files in"
        " ui.perfetto.dev."
    )
