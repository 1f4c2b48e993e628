"""`rlprof dashboard`: the way to a running job's Ray dashboard."""

from __future__ import annotations

import subprocess
import sys

import click

from rlprof_ops.commands._jobs import job_argument


@click.command()
@job_argument
@click.option("--port", default=8265, show_default=True, type=click.IntRange(1, 65535), help="Port on this machine.")
@click.option("--open", "open_it", is_flag=True, help="Open the tunnel here, until Ctrl-C, and a browser where there is one.")
def command(job: str, port: int, open_it: bool) -> None:
    """Print the ssh tunnel to the Ray dashboard of JOB. The job needs it switched on: --set RLPROF_DASHBOARD=1.

    Example: rlprof dashboard 4711
    """
    from rlprof_ops.cluster.dashboard import locate
    from rlprof_ops.cluster.find import find

    found = locate(find(job))
    line = found.tunnel(port)
    url = f"http://127.0.0.1:{port}"
    if not open_it:
        for text in found.advice(port):
            click.echo(text)
        return
    click.echo(f"{url}, until Ctrl-C: {' '.join(line)}")
    tunnel = subprocess.Popen(line, stdin=subprocess.DEVNULL)
    try:
        click.launch(url)
        sys.exit(tunnel.wait())
    except KeyboardInterrupt:
        tunnel.terminate()
