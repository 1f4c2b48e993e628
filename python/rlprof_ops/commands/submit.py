"""`rlprof submit`: a request, a command and sbatch's flags become one job, checked before Slurm sees it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rlprof_ops import env_names
from rlprof_ops.commands._framework import FrameworkName
from rlprof_ops.commands._request_options import request_options
from rlprof_ops.commands._sbatch_command import SbatchCommand, forwarded_options, words_of


@click.command(
    cls=SbatchCommand,
    options_metavar="[OPTIONS] [ANY SBATCH OPTION] [-- COMMAND ...]",
    short_help="Submit COMMAND as a Ray job, its request checked first.",
)
@forwarded_options
@click.option(
    "--request",
    "request_file",
    type=click.Path(),
    metavar="FILE",
    help="What to profile (YAML); without it, and without --steps, nothing.",
)
@request_options
@click.option("--container", metavar="IMAGE", help="Container image (pyxis or apptainer).")
@click.option("--mounts", metavar="SRC:DST,...", help="Mounts of the container.")
@click.option(
    "--set",
    "settings",
    metavar="NAME[=VALUE]",
    multiple=True,
    help="A knob or any variable for the job; NAME alone: as in this shell.",
)
@click.option(
    "--framework", type=FrameworkName(), help="Add this trainer's own profiling settings to the command."
)
@click.option(
    "--world", metavar="NAME=RANKS,...", help="Ranks of each worker, for exact numbers in the plan."
)
@click.option("--dry-run", is_flag=True, help="Show the sbatch line and its environment, and submit nothing.")
@click.option(
    "--wait",
    is_flag=True,
    help="Follow the job to its end; ends with its exit code, or 3 when a report is missing.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, the rest on stderr.")
@click.pass_context
def command(
    ctx: click.Context,
    request_file: str | None,
    container: str | None,
    mounts: str | None,
    settings: tuple[str, ...],
    framework: str | None,
    world: str | None,
    dry_run: bool,
    wait: bool,
    as_json: bool,
    overrides: dict[str, str],
) -> None:
    """Submit COMMAND as a Ray job through ray.sub, with its profile request checked and planned first.

    Options that are not listed go to sbatch as they are: --partition=gpu --account=rl --gres=gpu:8. Of this
    shell the job gets PATH, HOME and the like, and nothing else; --dry-run shows all of it. Without COMMAND
    the cluster waits for you.

    Example: rlprof submit -N 3 --gpus-per-node 8 --request profile.yaml --wait -- python train.py
    """
    from rlprof_ops.commands import _submitting
    from rlprof_ops.submit import sbatch_line

    knobs, from_shell = sbatch_line.parse_settings(settings, os.environ)
    given = {env_names.REQUEST: request_file, "CONTAINER": container, "MOUNTS": mounts}
    knobs |= {name: value for name, value in given.items() if value is not None}
    words = words_of(ctx)
    asked = sbatch_line.SubmitRequest(
        sbatch=words.sbatch,
        command=sbatch_line.command_line(words.command) if words.command else None,
        knobs=knobs,
        from_shell=from_shell,
        overrides=overrides,
        framework=framework,
    )
    _submitting.go(asked, Path.cwd(), _submitting.Wishes(world, dry_run, wait, as_json))
