"""`rlprof live`: a running job, live in the browser."""

from __future__ import annotations

import click

from rlprof_ops.commands._jobs import job_argument


@click.command()
@job_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of 127.0.0.1. Default: one that is free.",
)
def command(job: str, port: int) -> None:
    """Show the running JOB as a page on 127.0.0.1.

    It is what `rlprof top` shows; the ssh line for another machine is printed. Only who has the printed
    address gets in. Ctrl-C ends it.

    Example: rlprof live 4711
    """
    from rlprof_ops.analyze.browser import advice
    from rlprof_ops.errors import RlprofError
    from rlprof_ops.job.run_folder import run_folder
    from rlprof_ops.operate.live_server import LiveServer
    from rlprof_ops.operate.recorded import read_summary

    run = run_folder(job)
    read_summary(run)
    try:
        server = LiveServer(run, port)
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
