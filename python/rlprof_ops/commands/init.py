"""`rlprof init`: the job's files put into a project."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Put ray.sub and all it needs into FOLDER on shared storage.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--no-package",
    is_flag=True,
    help="Without python/rlprof_ops: the nodes' own Python has rlprof-ops installed.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace files that differ from this version's; profile.yaml is never replaced.",
)
def command(folder: Path, no_package: bool, force: bool) -> None:
    """Put ray.sub, scripts/, env/, python/ and an example profile.yaml into FOLDER, on storage that all nodes
    share.

    Safe to repeat; what you changed is named and kept.

    Example: rlprof init /shared/me/rlprof
    """
    from rlprof_ops.submit.init_project import put

    done = put(folder, with_package=not no_package, force=force)
    click.echo(f"{folder}: {len(done.written)} files written, {len(done.same)} were there already")
    for name in done.kept:
        click.echo(f"kept as it is: {name}")
    click.echo("next:")
    click.echo(f"  rlprof plan {folder / 'profile.yaml'} --world policy_worker=8")
    click.echo(
        f"  COMMAND='python train.py' RLPROF_REQUEST={folder.resolve() / 'profile.yaml'} RLPROF_VENV=<venv>"
        f" sbatch -N 2 {folder.resolve() / 'ray.sub'}"
    )
