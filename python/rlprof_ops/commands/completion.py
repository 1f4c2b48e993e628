"""`rlprof completion`: a shell's completion of commands, options and job ids."""

from __future__ import annotations

import os
from pathlib import Path

import click

FILES = {
    "bash": "~/.local/share/bash-completion/completions/rlprof",
    "zsh": "~/.zfunc/_rlprof",
    "fish": "~/.config/fish/completions/rlprof.fish",
}


@click.command(short_help="Print the script by which your shell completes rlprof.")
@click.argument("shell", type=click.Choice(list(FILES)), required=False)
@click.pass_context
def command(ctx: click.Context, shell: str | None) -> None:
    """Print the script by which bash, zsh or fish completes rlprof's commands, options and job ids.

    Without SHELL: for the shell you use. bash reads it from
    ~/.local/share/bash-completion/completions/rlprof.

    Example: eval "$(rlprof completion bash)"
    """
    from click.shell_completion import get_completion_class

    from rlprof_ops.errors import UsageError

    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in FILES else None
    if kind is None:
        raise UsageError(f"SHELL={name!r}: name one of {', '.join(FILES)}, as in: rlprof completion bash")
    click.echo(kind(ctx.find_root().command, {}, "rlprof", "_RLPROF_COMPLETE").source())
    click.echo(f"# To keep it: rlprof completion {name} > {FILES[name]}")
