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
@click.option("--install", is_flag=True, help="Write it where the shell reads it at its start.")
@click.pass_context
def command(ctx: click.Context, shell: str | None, install: bool) -> None:
    """Print or install the script by which bash, zsh or fish completes rlprof's commands, options and job
    ids.

    Without SHELL: for the shell you use. bash reads it from
    ~/.local/share/bash-completion/completions/rlprof.

    Example: rlprof completion bash --install
    """
    from click.shell_completion import get_completion_class

    from rlprof_ops.errors import UsageError
    from rlprof_ops.host import atomic

    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in FILES else None
    if kind is None:
        raise UsageError(f"SHELL={name!r}: name one of {', '.join(FILES)}, as in: rlprof completion bash")
    script = kind(ctx.find_root().command, {}, "rlprof", "_RLPROF_COMPLETE").source()
    if not install:
        click.echo(script)
        click.echo(f"# To keep it: rlprof completion {name} --install")
        return
    file = Path(FILES[name]).expanduser()
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(file, script + "\n")
    click.echo(f"{file}: new shells complete rlprof", err=True)
    if name == "zsh":
        click.echo("zsh reads it where ~/.zshrc has, before compinit: fpath=(~/.zfunc $fpath)", err=True)
