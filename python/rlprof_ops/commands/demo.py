"""`rlprof demo`: the whole chain on this machine alone, with a small real GRPO."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from rlprof_ops import env_names
from rlprof_ops.commands._request_options import for_this_machine


@click.command(short_help="Profile a small real GRPO on this machine: no Slurm, no GPU.")
@click.option("--steps", default=8, show_default=True, type=click.IntRange(1), help="Training steps.")
@click.option(
    "--output",
    default="rlprof-demo",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the run folder goes.",
)
@click.option(
    "--request",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A request of your own instead of the demo's. Default: RLPROF_REQUEST.",
)
@click.argument("trainer_arguments", nargs=-1, type=click.UNPROCESSED)
def command(steps: int, output: Path, request: Path | None, trainer_arguments: tuple[str, ...]) -> None:
    """Profile a small real GRPO on this machine: local Ray, no Slurm, no GPU.

    nsight windows where nsys is installed, torch traces always. More arguments go to the trainer.

    Example: rlprof demo --steps 8 -- --slow-rank 1
    """
    from rlprof_ops.backends.nsight import nsys_cli
    from rlprof_ops.demo.local_job import run_local
    from rlprof_ops.demo.request import write_request
    from rlprof_ops.extras import need
    from rlprof_ops.job.knobs import filled

    output.mkdir(parents=True, exist_ok=True)
    if request is None and os.environ.get(env_names.REQUEST):
        request = Path(os.environ[env_names.REQUEST])
    if request is None:
        request = write_request(output / "profile.yaml", with_nsight=nsys_cli.find() is not None)
    for_this_machine(str(request), filled(os.environ))
    need("ray", "torch")
    trainer = [sys.executable, "-u", "-m", "rlprof_ops.demo", f"--steps={steps}", *trainer_arguments]
    settings = {
        "COMMAND": shlex.join(trainer),
        env_names.REQUEST: str(request.resolve()),
        "RAY_LOG_SYNC_FREQUENCY": "2",
    }
    result = run_local(output, settings, lambda line: click.echo(f"  {line}"))
    click.echo(f"run folder: {result.run.path}")
    if nsys_cli.find() is None:
        click.echo(
            "nsys is not installed here, so there are torch traces alone (env/setup_test_machine.sh nsys, as"
            " root)."
        )
    if result.exit_code:
        sys.exit(result.exit_code)
    sys.exit(incomplete(result.run.path))


def incomplete(run_folder: Path) -> int:
    """3 when a planned report is missing, else 0: read from the manifest that the job's end has made."""
    from rlprof_ops.collect.harvest.manifest import Manifest
    from rlprof_ops.errors import EXIT_INCOMPLETE

    manifest = Manifest.load(run_folder)
    return 0 if manifest.complete else EXIT_INCOMPLETE
