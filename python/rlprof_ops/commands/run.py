"""`rlprof run`: a job of one node on this machine, without Slurm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rlprof_ops import env_names
from rlprof_ops.commands._request_options import for_this_machine, request_options


@click.command(
    context_settings={"allow_interspersed_args": False},
    short_help="Run CMD as a job of this machine alone: no Slurm.",
)
@click.option(
    "--request",
    "path",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Default: RLPROF_REQUEST and the other variables that ask.",
)
@click.option(
    "--folder",
    default=".",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the run folder goes. Default: here.",
)
@request_options
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
def command(path: str | None, folder: Path, program: tuple[str, ...], overrides: dict[str, str]) -> None:
    """Start a Ray on this machine, run CMD in it, and end as a job does: reports, manifest, answer.

    CMD joins that Ray by RAY_ADDRESS. Knobs are taken from the environment. A Ray that runs already is not
    touched: it needs our plugin from its start (docs/wrapping.md). The exit code is CMD's; 3 when a planned
    report is missing.

    Example: rlprof run --steps 3:5 --workers '*policy*' -- python train.py
    """
    from rlprof_ops.commands.demo import incomplete
    from rlprof_ops.demo.local_job import run_local
    from rlprof_ops.extras import need
    from rlprof_ops.job.knobs import filled
    from rlprof_ops.job.supervisor_env import names_python
    from rlprof_ops.request.environ import REQUEST_VARIABLES
    from rlprof_ops.submit.sbatch_line import command_line

    knobs = filled(os.environ)
    request = for_this_machine(path, knobs, overrides).in_folder(os.getcwd())
    if not names_python(knobs):
        need("ray")
    folder.mkdir(parents=True, exist_ok=True)
    closed = dict.fromkeys(REQUEST_VARIABLES, "")
    settings = {**closed, "COMMAND": command_line(program), env_names.REQUEST_JSON: request.to_json()}
    result = run_local(folder, settings, click.echo)
    click.echo(f"run folder: {result.run.path}")
    sys.exit(result.exit_code or incomplete(result.run.path))
