"""`rlprof patch-ray`: runs scripts/patch_ray_nsight.sh, which is all there is to it."""

from __future__ import annotations

import subprocess
import sys

import click

from rlprof_ops.rayenv import PATCH_SCRIPT


@click.command(short_help="Make Ray's own nsight plugin keep a worker's interpreter.")
@click.option(
    "--python", metavar="PY", help="The interpreter whose Ray is meant. Default: the one that runs rlprof."
)
@click.option("--file", "path", metavar="FILE", help="The nsight.py itself, wherever it is.")
@click.option("--check", is_flag=True, help="Change nothing; exit 1 when the patch is needed.")
def command(python: str | None, path: str | None, check: bool) -> None:
    """Make Ray's nsight plugin keep a worker's own interpreter, in the installed file.

    Only for clusters where rlprof's runtime-env plugin cannot be registered. Exits 0 when the file is
    repaired (now, before, or by Ray itself), 1 with --check when it needs the patch, 2 when it could not be
    done.

    Example: rlprof patch-ray --python /opt/venv/bin/python --check
    """
    arguments = ["--python", python or sys.executable]
    arguments += ["--file", path] if path else []
    arguments += ["--check"] if check else []
    sys.exit(subprocess.run(["bash", PATCH_SCRIPT, *arguments]).returncode)
