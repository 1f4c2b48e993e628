"""`rlprof`: finds the command by its name in `rlprof_ops.commands`, so that only that one file is
imported.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Any

import click

from rlprof_ops import commands
from rlprof_ops.errors import EXIT_FAILED, EXIT_USAGE, RlprofError
from rlprof_ops.version import __version__

# Faults of a machine or a file, which a person can mend; any other OSError is a mistake of ours.
_OF_THE_MACHINE = {
    getattr(errno, name)
    for name in (
        "EACCES",
        "EPERM",
        "ENOSPC",
        "EDQUOT",
        "EROFS",
        "ESTALE",
        "EIO",
        "ENAMETOOLONG",
        "EISDIR",
        "ELOOP",
        "EINVAL",
    )
}


class LazyCommands(click.Group):
    """A group whose commands are the modules of `rlprof_ops.commands`: `patch_ray.py` holds `patch-ray`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in commands.GROUPS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{commands.__name__}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = self._today(ctx, args)
        try:
            return super().resolve_command(ctx, words)
        except click.UsageError as error:
            from rlprof_ops.words import did_you_mean

            hint = did_you_mean(words[0], self.list_commands(ctx))
            if not hint:
                raise
            raise click.UsageError(error.message + hint, ctx) from None

    def _today(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words as they are written now: `help NAME` is `NAME --help`, and old names have new ones."""
        if args[0] == "help" and not ctx.resilient_parsing:
            if args[1:]:
                return [*self._today(ctx, args[1:2]), "--help"]
            click.echo(ctx.get_help())
            ctx.exit()
        from rlprof_ops.commands._old_spellings import SPELLINGS

        if args[0] not in SPELLINGS:
            return args
        said, spell = SPELLINGS[args[0]]
        if not ctx.resilient_parsing:
            click.echo(
                f"rlprof {args[0]} is `rlprof {said}` now; the old name stays for one release", err=True
            )
        return spell(args[1:])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The three to start with, then the others in their groups."""
        first = {"start with": commands.START_WITH}
        others = {
            group: tuple(name for name in names if name not in commands.START_WITH)
            for group, names in commands.GROUPS.items()
        }
        width = max(map(len, self.list_commands(ctx)))
        for group, names in {**first, **others}.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(group.capitalize()):
                formatter.write_dl(
                    [
                        (name.ljust(width), command.get_short_help_str(formatter.width - width - 6))
                        for name, command in found
                        if command is not None
                    ]
                )


@click.group(
    cls=LazyCommands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "-v",
    "--version",
    is_flag=True,
    is_eager=True,
    help="Show the version; with --json all that a bug report needs.",
)
@click.option("--json", "as_json", is_flag=True, hidden=True)
@click.pass_context
def cli(ctx: click.Context, version: bool, as_json: bool) -> None:
    """Profile RL post-training on Ray clusters inside Slurm jobs.

    Example: rlprof plan profile.yaml --world policy_worker=8
    """
    if version:
        click.echo(_versions() if as_json else f"rlprof, version {__version__}")
        ctx.exit()
    if as_json:
        raise click.UsageError("--json goes after the command, or with --version", ctx)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(EXIT_USAGE)


def _versions() -> str:
    """Versions of everything that a profiled job rests on, null where it is not installed, and whether traces
    are read with the compiled scanner.
    """
    import json
    import platform

    from rlprof_ops.extras import installed_version

    def scanner() -> str | None:
        try:
            from rlprof_ops.analyze.readers.scan.batches import unused
        except ImportError:  # of what the extra `analyze` brings
            return None
        return unused() or "used"

    packages = ("ray", "nvtx", "torch", "submitit", "pyarrow", "click", "rich")
    found = {"rlprof": __version__, "python": platform.python_version(), "platform": platform.platform()}
    return json.dumps({**found, **{name: installed_version(name) for name in packages}, "scanner": scanner()})


def main(argv: list[str] | None = None) -> Any:
    """Run the command line; an `RlprofError` becomes one message and its documented exit code."""
    for stream in (sys.stdout, sys.stderr):  # a name that is no UTF-8, a terminal that knows ASCII alone
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _run(argv)
    except RlprofError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        _complain(_of_the_machine(error))
        sys.exit(EXIT_FAILED)


def _complain(text: str) -> None:
    """On standard error; names of files may be anybody's."""
    from rlprof_ops.collect.harvest.manifest_table import printable_lines

    click.echo(f"rlprof: {printable_lines(text)}", err=True)


def _run(argv: list[str] | None) -> None:
    """Raises NotInstalled where a package of an extra is missing that the command needs."""
    try:
        cli.main(args=argv, prog_name="rlprof")
    except ModuleNotFoundError as error:
        from rlprof_ops import extras

        package = extras.brought(error.name)
        if package is None:
            raise
        raise extras.NotInstalled(package) from error


def _of_the_machine(error: OSError) -> str:
    """A file that may not be read, a full disk: one line that names the path."""
    if isinstance(error, PermissionError) and error.filename:
        from rlprof_ops.job.run_folder import denied

        return denied(os.fsdecode(error.filename))
    return f"{os.fsdecode(error.filename) + ': ' if error.filename else ''}{error.strerror or error}"
