"""`rlprof clean`: old run folders, caches and leftovers, removed after a question."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click


@click.command(short_help="List your old run folders, ask, and remove them.")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--older-than",
    default="30d",
    show_default=True,
    metavar="AGE",
    help="Not written for so long: 12h, 30d, 4w.",
)
@click.option(
    "--caches", is_flag=True, help="Only the columns that reports were read into; made anew when needed."
)
@click.option(
    "--uncopied", is_flag=True, help="Also folders on this node whose reports were not copied home."
)
@click.option("--dry-run", is_flag=True, help="Only list.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(
    folders: tuple[Path, ...], older_than: str, caches: bool, uncopied: bool, dry_run: bool, yes: bool
) -> None:
    """List run folders of yours that nobody wrote to for 30 days, ask, and remove them; also what killed jobs
    left on this machine.

    Looks in BASE_LOG_DIR, here, beside the jobs that are remembered, and in FOLDERS. Jobs that wait or run
    are left alone, and so is what belongs to others. It is said what is left alone because nobody here knows
    whether its job runs, or because it holds the only copy of reports.

    Example: rlprof clean --older-than 30d --dry-run
    """
    from rlprof_ops.collect.harvest.manifest_table import printable
    from rlprof_ops.errors import EXIT_FAILED, UsageError
    from rlprof_ops.operate.clean.leftovers import find_old, parse_age, remove
    from rlprof_ops.words import duration, size

    everything = find_old(parse_age(older_than), folders, os.environ, caches, uncopied)
    found = [old for old in everything if not old.stays]
    for old in found:
        spent, held = duration(old.used_s * 1e9), size(old.size_bytes)
        click.echo(printable(f"{spent:>8}  {held:>9}  {old.kind:<15}  {old.path}"))
    for old in everything:
        if old.stays:
            click.echo(printable(f"left alone: {old.path}: {old.stays}"), err=True)
    if not found:
        click.echo(f"nothing of yours is older than {older_than}")
        return
    click.echo(f"{len(found)} in all, {size(sum(old.size_bytes for old in found))}")
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nothing was removed: nobody can be asked here; give --yes, or --dry-run")
        click.confirm("Remove them for ever?", abort=True)
    failed = [(old, why) for old, why in remove(found) if why]
    for old, why in failed:
        click.echo(printable(f"{old.path}: {why}"), err=True)
    click.echo(f"{len(found) - len(failed)} removed")
    if failed:
        sys.exit(EXIT_FAILED)
