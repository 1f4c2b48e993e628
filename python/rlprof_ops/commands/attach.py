"""`rlprof attach`: a shell, or one command, on a node of a running job."""

from __future__ import annotations

import os

import click

from rlprof_ops.commands._jobs import job_argument


@click.command(context_settings={"allow_interspersed_args": False})
@job_argument
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[NODE] [-- COMMAND ...]")
def command(job: str, words: tuple[str, ...]) -> None:
    """Open a shell on the head of JOB, or on NODE (a name or a number), in its container, with its Ray
    reachable.

    With COMMAND, run that instead of a shell; the exit code is its own.

    Example: rlprof attach 4711 -- ray status
    """
    from rlprof_ops.job.run_folder import find
    from rlprof_ops.operate import attach

    node, argv = attach.node_and_command(words)
    line, env = attach.into(find(job), node, argv, os.environ)
    os.execvpe(line[0], line, env)
