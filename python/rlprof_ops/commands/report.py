"""`rlprof report`: reads every report of a run and writes the answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlprof_ops.commands._jobs import run_argument
from rlprof_ops.errors import EXIT_INCOMPLETE

if TYPE_CHECKING:
    from rlprof_ops.analyze.reporting import Form


@click.command(short_help="Explain a run: step anatomy, idle time, stragglers, kernels.")
@run_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="What is printed: the summary, report.json, or Markdown for an issue (secrets masked).",
)
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser afterwards.")
@click.option(
    "--serve", is_flag=True, help="Serve it and the timeline on 127.0.0.1; makes what is not there yet."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Of --serve, on 127.0.0.1. Default: one that is free.",
)
@click.option(
    "--perfetto",
    metavar="URL",
    default="https://ui.perfetto.dev",
    show_default=True,
    help="The Perfetto that --serve hands the timeline to.",
)
@click.option("--no-timeline", is_flag=True, help="With --serve: do not make the timeline.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where the files are read.",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), help="How many files are read at once. Default: one a CPU."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help=(
        "Folder for report.html and report.json. Default: the run folder; of other reports the current one."
    ),
)
@click.option(
    "--model-params", metavar="N", help="Parameters of the model (7e9, 7B), of which MFU is computed."
)
@click.option(
    "--model-config",
    type=click.Path(path_type=Path),
    help="Its Hugging Face config.json instead, or the folder that holds one.",
)
@click.option(
    "--tokens-per-step",
    type=click.IntRange(min=1),
    help="Tokens, prompts included, that a step trains on. Default: what the recorder saw of the engines.",
)
@click.option(
    "--peak-tflops",
    type=click.FloatRange(min=0, min_open=True),
    help="What one GPU can do at most. Default: dense BF16 by its name.",
)
@click.option(
    "--no-cache",
    is_flag=True,
    help="Neither use nor write the Parquet columns beside the reports of a run folder.",
)
def command(
    run: str,
    form: Form,
    open_page: bool,
    serve: bool,
    port: int,
    perfetto: str,
    no_timeline: bool,
    engine: str,
    jobs: int | None,
    output: Path | None,
    model_params: str | None,
    model_config: Path | None,
    tokens_per_step: int | None,
    peak_tflops: float | None,
    no_cache: bool,
) -> None:
    """Explain a run: step anatomy, idle time, stragglers, kernels; as a page, as JSON and here.

    JOB is a job id, its run folder, any folder of reports, or one report. Writes report.html (opens offline)
    and report.json, never over a file that rlprof did not write.

    --serve prints the ssh line for another machine; only who has the printed address gets in. A report that
    is there is served as it is, and made anew where the job goes on, has ended since, or was harvested since.
    Ctrl-C ends it.

    Example: rlprof report 4711 --open
    """
    # Nothing here multiplies matrices, and numpy would start a thread a CPU for it in each process.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from rlprof_ops.analyze.model_size.utilisation import told
    from rlprof_ops.analyze.reporting import is_kept, report, was_read
    from rlprof_ops.job import own_files
    from rlprof_ops.job.run_folder import folder_of

    model = told(model_params, model_config, tokens_per_step, peak_tflops)
    folder = folder_of(run)
    there = False
    if serve and form == "text" and model is None:
        there = is_kept(own_files.output_folder(folder, output), folder)
    if not there:
        answer = report(
            folder,
            form=form,
            open_page=open_page and not serve,
            engine=engine,
            jobs=jobs,
            output=output,
            cache=not no_cache,
            model=model,
        )
        if not was_read(answer):
            click.echo(f"rlprof: {folder}: none of its reports could be read", err=True)
            sys.exit(EXIT_INCOMPLETE)
    if serve:
        from rlprof_ops.analyze.viewing import view

        view(folder, there, port, perfetto, output, jobs, not no_timeline, open_page)
