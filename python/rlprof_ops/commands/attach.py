"""`rlprof attach`: a shell, or one command, on a node of a running job."""

from __future__ import annotations

import os

import click

from rlprof_ops.commands._jobs import job_argument, latest_job


class AttachCommand(click.Command):
    """Puts the latest job in front where none is named: `rlprof attach -- ray status`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["--"] and not ctx.resilient_parsing:
            args = [latest_job(), *args]
        return super().parse_args(ctx, args)


@click.command(
    cls=AttachCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Open a shell on a node of JOB, in its container, with its Ray.",
)
@job_argument
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[NODE] [-- COMMAND ...]")
def command(job: str, words: tuple[str, ...]) -> None:
    """Open a shell on the head of JOB, or on NODE (a name or a number), in its container, with its Ray
    reachable.

    With COMMAND, run that instead of a shell; the exit code is its own.

    Example: rlprof attach 4711 -- ray status
    """
    from rlprof_ops.job.run_folder import find
    from rlprof_ops.operate import attach_line

    node, argv = attach_line.node_and_command(words)
    line, env = attach_line.into(find(job), node, argv, os.environ)
    os.execvpe(line[0], line, env)
