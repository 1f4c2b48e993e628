"""`rlprof dashboard`: the way to a running job's Ray dashboard."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

import click

from rlprof_ops.commands._jobs import job_argument

_TUNNEL_SECONDS = 60.0


@click.command()
@job_argument
@click.option(
    "--port", default=8265, show_default=True, type=click.IntRange(1, 65535), help="Port on this machine."
)
@click.option(
    "--open",
    "open_it",
    is_flag=True,
    help="Open the tunnel here, until Ctrl-C, and a browser where there is one.",
)
def command(job: str, port: int, open_it: bool) -> None:
    """Print the ssh tunnel to the Ray dashboard of JOB. The job needs it switched on: --set
    RLPROF_DASHBOARD=1.

    Example: rlprof dashboard 4711
    """
    from rlprof_ops.job.run_folder import find
    from rlprof_ops.operate.ray_dashboard import locate

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
        if _listens(port, tunnel):
            click.launch(url)
        sys.exit(tunnel.wait())
    except KeyboardInterrupt:
        pass
    finally:
        tunnel.terminate()
        tunnel.wait()


def _listens(port: int, tunnel: subprocess.Popen[bytes]) -> bool:
    """Whether the tunnel's end on this machine takes connections; False when ssh has ended or is asking
    for a password too long.
    """
    until = time.monotonic() + _TUNNEL_SECONDS
    while tunnel.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        time.sleep(0.1)
    return False
