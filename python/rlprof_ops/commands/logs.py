"""`rlprof logs`: what the driver, a node or the job itself says."""

from __future__ import annotations

import os
import sys

import click

from rlprof_ops.commands._jobs import job_argument


@click.command(short_help="Print the driver's output of JOB, or what there is before it.")
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "--node",
    metavar="NODE",
    help="A node's supervisor instead of the driver: its name, or its number; 0 is the head.",
)
@click.option("--job-output", is_flag=True, help="What the batch script itself said (slurm-<job>.out).")
@click.option(
    "-n", "--lines", type=click.IntRange(0), metavar="N", help="Only the last N lines; default: all."
)
def command(job: str, follow: bool, node: str | None, job_output: bool, lines: int | None) -> None:
    """Print the driver's output of JOB; before the driver runs, what the head or the job says.

    Example: rlprof logs -f 4711
    """
    from rlprof_ops.collect.harvest.manifest_table import printable
    from rlprof_ops.errors import UsageError
    from rlprof_ops.operate import job_logs

    if node is not None and job_output:
        raise UsageError("--node and --job-output name two logs; give one of them")
    source = job_logs.Source(job, "job" if job_output else node if node is not None else "driver")
    try:
        if follow:
            job_logs.follow(source, _put, lines)
            return
        path = source.file()
        click.echo(printable(f"==> {path} <=="), err=True)
        job_logs.copy(path, _put, lines)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader has gone, as `head` does; Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    if node is not None:
        _name_more(job, node)


def _put(chunk: bytes) -> None:
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def _name_more(text: str, node: str) -> None:
    from rlprof_ops.job.run_folder import find
    from rlprof_ops.operate import job_logs
    from rlprof_ops.operate.job_status import look

    job = find(text)
    assert job.run is not None
    more = job_logs.more_of(job.run, job_logs.node_of(node, look(job).nodes))
    if more:
        click.echo(f"more of this node, in {job.run}: {', '.join(more)}", err=True)
