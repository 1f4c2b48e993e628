"""`rlprof doctor`: what a profiled job will meet, before it is submitted."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click


@click.command(short_help="Check what a job will meet, here and on nodes, each with a fix.")
@click.option(
    "--nodes", type=click.IntRange(1), metavar="N", help="Also on N compute nodes, by a short srun job."
)
@click.option("--job", metavar="J", help="Also on the nodes of a running job of yours.")
@click.option(
    "--container",
    metavar="IMG",
    help="The compute nodes' part inside this image, by pyxis or as RLPROF_CONTAINER_RUNTIME says; one node"
    " unless --nodes or --job.",
)
@click.option(
    "--shared",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where run folders will be. Default: BASE_LOG_DIR, else here.",
)
@click.option(
    "--python",
    metavar="PY",
    help="The nodes' Python. Default: of RLPROF_VENV, else this one; python3 in a container.",
)
@click.option(
    "--srun-args", default="", metavar="WORDS", help="More for srun, e.g. '--partition=gpu --gres=gpu:1'."
)
@click.option(
    "--wait",
    "seconds",
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="For the compute nodes, queueing included.",
)
@click.option("--quick", is_flag=True, help="Without the trial capture and without importing torch.")
@click.option("--problems-only", is_flag=True, help="Without what is ok.")
@click.option("--json", "as_json", is_flag=True, help="A list of {place, check, state, said, fix}.")
def command(
    nodes: int | None,
    job: str | None,
    container: str | None,
    shared: Path | None,
    python: str | None,
    srun_args: str,
    seconds: int,
    quick: bool,
    problems_only: bool,
    as_json: bool,
) -> None:
    """Check Slurm, the shared folder, profilers, Ray and clocks, each with a fix; exits with 1 when a job
    would fail.

    Without --nodes, --job or --container only this machine is looked at.

    Example: rlprof doctor --nodes 2 --srun-args '--partition=gpu --gres=gpu:1'
    """
    import json
    import shlex

    from rlprof_ops.check_result import FAIL, OK, run_all
    from rlprof_ops.doctor import node_checks, remote, slurm_config
    from rlprof_ops.doctor.table import render
    from rlprof_ops.errors import EXIT_FAILED, UsageError
    from rlprof_ops.job.knobs import Settings

    if nodes and job:
        raise UsageError("--nodes and --job: give one; a running job has its own nodes")
    settings = Settings.load(os.environ)
    base = (shared or settings.path("BASE_LOG_DIR") or Path.cwd()).absolute()
    show = _progress()
    checks = {
        "site file": lambda: slurm_config.site_file(os.environ),
        "Slurm": lambda: slurm_config.checks(settings),
    }
    found = run_all(checks, "login", show)
    found += node_checks.here(settings, base, quick=quick, place="login", progress=show)
    if nodes or job or container:
        apptainer = settings["RLPROF_CONTAINER_RUNTIME"] == "apptainer"
        venv = settings.path("RLPROF_VENV")
        python = python or settings["RLPROF_PYTHON"] or (str(venv / "bin" / "python") if venv else "")
        where = remote.NodeSelection(
            nodes=nodes or 1,
            job=job or "",
            container=container or "",
            mounts=settings["MOUNTS"],
            node_root=settings["RLPROF_NODE_ROOT"],
            apptainer=tuple(shlex.split(settings["RLPROF_APPTAINER_ARGS"])) if apptainer else None,
            python=python,
            srun_args=tuple(shlex.split(srun_args)),
            seconds=seconds,
        )
        try:
            found += remote.examine(where, base, quick, show)
        finally:
            show("")
    show("")
    if as_json:
        shown = [finding for finding in found if not problems_only or finding.state != OK]
        click.echo(json.dumps([finding.to_dict() for finding in shown], indent=1))
    else:
        click.echo(render(found, problems_only=problems_only, paint=_paint))
    if any(finding.state == FAIL for finding in found):
        sys.exit(EXIT_FAILED)


def _paint(text: str, state: str) -> str:
    """A state's word in its colour; click takes the colours away where the output is no terminal."""
    return click.style(text, fg={"ok": "green", "warn": "yellow", "fail": "red"}[state], bold=state == "fail")


def _progress() -> Callable[[str], None]:
    """Shows on a terminal what is looked at; "" clears the line. Elsewhere nothing."""
    if not sys.stderr.isatty():
        return lambda text: None

    def show(text: str) -> None:
        click.echo(f"\r\x1b[K{f'looking at {text} …' if text else ''}", nl=False, err=True)

    return show
