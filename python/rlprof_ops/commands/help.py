"""`rlprof help`: the same as --help, as people type it."""

from __future__ import annotations

import click


@click.command(short_help="Show what a command does, with its options.")
@click.argument("name", required=False, metavar="[COMMAND]")
@click.pass_context
def command(ctx: click.Context, name: str | None) -> None:
    """Show what a command does, with its options; without COMMAND, the list of commands.

    Example: rlprof help submit
    """
    parent = ctx.parent
    assert parent is not None and isinstance(parent.command, click.Group)
    if name is None:
        click.echo(parent.get_help())
        return
    _, found, _ = parent.command.resolve_command(parent, [name])
    assert found is not None
    click.echo(found.get_help(click.Context(found, info_name=name, parent=parent)))
