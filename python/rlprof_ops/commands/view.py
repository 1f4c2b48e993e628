"""`rlprof view`: a run's report in the browser, from a machine that has none."""

from __future__ import annotations

from pathlib import Path

import click

from rlprof_ops.commands._jobs import run_argument


@click.command(short_help="Serve the report and the timeline of JOB on 127.0.0.1.")
@run_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of 127.0.0.1. Default: one that is free.",
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser here.")
@click.option(
    "--perfetto",
    metavar="URL",
    default="https://ui.perfetto.dev",
    show_default=True,
    help="The Perfetto that the timeline is handed to.",
)
@click.option("--no-timeline", is_flag=True, help="Do not make the timeline where it is missing.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help=(
        "Folder of the report, and where it is made if missing. Default: the run folder; of other reports the"
        " current one."
    ),
)
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), help="How many files are read at once. Default: one a CPU."
)
def command(
    run: str,
    port: int,
    open_page: bool,
    perfetto: str,
    no_timeline: bool,
    output: Path | None,
    jobs: int | None,
) -> None:
    """Serve the report and the timeline of JOB on 127.0.0.1, and print the ssh line for another machine.

    Only who has the printed address gets in, and nothing else of the machine is served. The timeline opens in
    Perfetto by a click. Makes report and timeline first where they are missing. Ctrl-C ends it.

    Example: rlprof view 4711
    """
    from rlprof_ops.analyze.viewing import view
    from rlprof_ops.job.run_folder import folder_of

    view(folder_of(run), port, perfetto, output, jobs, not no_timeline, open_page)
