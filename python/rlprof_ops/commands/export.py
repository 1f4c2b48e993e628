"""`rlprof export`: a job's steps and figures for Prometheus, TensorBoard, OpenTelemetry and notebooks."""

from __future__ import annotations

from pathlib import Path

import click

from rlprof_ops.commands._jobs import job_argument


@click.command(short_help="Give JOB's steps to Prometheus, TensorBoard, a notebook.")
@job_argument
@click.option(
    "--openmetrics",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the latest figures to this textfile, for a node exporter's collector; it ends in .prom.",
)
@click.option(
    "--openmetrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Answer Prometheus with them at this port until the job has ended; 0: one that is free.",
)
@click.option(
    "--openmetrics-address",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Of this machine, where that port is.",
)
@click.option(
    "--openmetrics-open",
    is_flag=True,
    help="At /metrics, for whoever reaches the port; else below a path that nobody can guess, printed.",
)
@click.option(
    "--tensorboard",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write steps and phases as scalars to an event file there.",
)
@click.option(
    "--otlp",
    metavar="URL",
    help="Send steps, phases, findings and, at the end, requests as spans to this collector (OTLP over HTTP),"
    " such as http://host:4318.",
)
@click.option(
    "--parquet",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write steps, phases and requests of all ranks as tables there; with --follow, at the end.",
)
@click.option("--follow", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "--every",
    "every_s",
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0.5, 3600),
    help="Between two looks, with --follow.",
)
def command(
    job: str,
    openmetrics: Path | None,
    openmetrics_port: int | None,
    openmetrics_address: str,
    openmetrics_open: bool,
    tensorboard: Path | None,
    otlp: str | None,
    parquet: Path | None,
    follow: bool,
    every_s: float,
) -> None:
    """Give the steps of JOB (a job id or a run folder) to other tools, while it runs or afterwards.

    Example: rlprof export 4711 --tensorboard runs/4711 --follow
    """
    import contextlib
    import sys

    from rlprof_ops.errors import EXIT_FAILED, RlprofError, UsageError
    from rlprof_ops.extras import need
    from rlprof_ops.job.run_folder import job_of, run_folder
    from rlprof_ops.operate.export import endpoint
    from rlprof_ops.operate.export.export_run import Sink, export
    from rlprof_ops.operate.export.otlp import OtlpSpans
    from rlprof_ops.operate.export.tensorboard import TensorBoardScalars
    from rlprof_ops.operate.recorded import ended
    from rlprof_ops.redact import redact_text
    from rlprof_ops.runtime.request_log import FOLDER as REQUESTS
    from rlprof_ops.words import counted

    if (openmetrics, openmetrics_port, tensorboard, otlp, parquet) == (None,) * 5:
        raise UsageError(
            "nothing to export to: give --openmetrics FILE, --openmetrics-port PORT, --tensorboard FOLDER,"
            " --otlp URL or --parquet FOLDER"
        )
    if otlp is not None and not otlp.startswith(("http://", "https://")):
        raise UsageError(f"--otlp {otlp!r} is no address; write for instance http://collector:4318")
    if openmetrics is not None and not openmetrics.absolute().parent.is_dir():
        raise UsageError(f"--openmetrics {openmetrics}: there is no folder {openmetrics.absolute().parent}")
    run = run_folder(job)
    server: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if parquet is not None:
        need("pyarrow", "numpy", "msgspec")
    if openmetrics_port is not None:
        if ended(run):
            raise RlprofError(f"{run}: the job has ended: nobody will ask its port; give --openmetrics FILE")
        try:
            listening = endpoint.MetricsServer(
                run, openmetrics_port, openmetrics_address, "" if openmetrics_open else None
            )
        except OSError as error:
            raise RlprofError(
                f"--openmetrics-port {openmetrics_port}: cannot listen on {openmetrics_address}"
                f" ({error.strerror or error}). Give another, or 0 for one that is free."
            ) from error
        click.echo(f"{listening.url}{endpoint.NAME}")
        server, follow = listening, True
    sinks: list[Sink] = []
    with contextlib.ExitStack() as opened:
        opened.enter_context(server)
        if tensorboard is not None:
            sinks.append(opened.enter_context(contextlib.closing(TensorBoardScalars(tensorboard))))
        if otlp is not None:
            job_id = job_of(run) or run.name
            spans = opened.enter_context(contextlib.closing(OtlpSpans(otlp, job_id, run=run)))
            sinks.append(spans)
        steps = export(run, sinks, openmetrics, every_s if follow else None)
        if otlp is not None and any(run.glob(f"nodes/*/{REQUESTS}/*.jsonl")):
            need("numpy", "msgspec")
            spans.add_requests(run)
    if sinks:
        click.echo(f"{steps} steps exported", err=True)
    if parquet is not None:
        from rlprof_ops.operate.export.parquet import write_tables

        written = write_tables(run, parquet)
        said = ", ".join(f"{count} {name}" for name, count in written.items())
        click.echo(f"{said} written to {parquet}", err=True)
    if otlp is not None and spans.lost:
        click.echo(f"{counted(spans.lost, 'span')} not taken by {redact_text(otlp)}", err=True)
        sys.exit(EXIT_FAILED)
