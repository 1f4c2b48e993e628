"""`rlprof`: finds the command by its name in `rlprof_ops.commands`, so that only that one file is
imported.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

import click

from rlprof_ops import commands
from rlprof_ops.errors import RlprofError
from rlprof_ops.version import __version__


class LazyCommands(click.Group):
    """A group whose commands are the modules of `rlprof_ops.commands`: `patch_ray.py` holds `patch-ray`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (module.name for module in pkgutil.iter_modules(commands.__path__))
        return sorted(name.rstrip("_").replace("_", "-") for name in names if not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module_name = cmd_name.replace("-", "_")
        if module_name == "import":  # a Python keyword cannot name a module
            module_name = "import_"
        module = importlib.import_module(f"{commands.__name__}.{module_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rlprof")
def cli() -> None:
    """Profile RL post-training on Ray clusters inside Slurm jobs.

    Example: rlprof plan profile.yaml --world policy_worker=8
    """


def main(argv: list[str] | None = None) -> Any:
    """Run the command line; an `RlprofError` becomes one message and its documented exit code."""
    try:
        cli.main(args=argv, prog_name="rlprof")
    except RlprofError as error:
        click.echo(f"rlprof: {error}", err=True)
        sys.exit(error.exit_code)
