"""`rlprof render`: a request in a trainer's own words."""

from __future__ import annotations

import os
import sys

import click

from rlprof_ops.commands._framework import FrameworkName
from rlprof_ops.commands._request_options import request_options
from rlprof_ops.errors import UsageError


@click.command(short_help="Print FILE in the words of a trainer's own configuration.")
@click.argument("file", required=False)
@click.option("--framework", required=True, type=FrameworkName(), help="Whose words.")
@click.option(
    "--format",
    "fmt",
    type=click.Choice(["env", "hydra", "yaml"]),
    help="Default: what the trainer is started with.",
)
@click.option("--strict", is_flag=True, help="Fail when the trainer cannot do all of the request.")
@request_options
def command(
    file: str | None, framework: str, fmt: str | None, strict: bool, overrides: dict[str, str]
) -> None:
    """Print FILE as the trainer's variables, Hydra overrides or YAML; comments and stderr say what it cannot
    do.

    Example: rlprof render --framework verl profile.yaml
    """
    from rlprof_ops import trainers
    from rlprof_ops.backends import Where
    from rlprof_ops.request import load_request
    from rlprof_ops.request.check import check_request

    dialect = trainers.get(framework)
    if fmt is not None and fmt not in dialect.formats:
        raise UsageError(f"--format {fmt}: {dialect.title} is configured by {' or '.join(dialect.formats)}")
    request = load_request(file, os.environ, overrides)
    remarks = check_request(request, Where(trainer=framework))
    rendered = dialect.render(request, fmt or dialect.formats[0])
    click.echo(rendered.text, nl=False)
    for remark in (*request.notes, *remarks):
        click.echo(f"rlprof: {remark}", err=True)
    for loss in rendered.losses:
        click.echo(f"rlprof: lost: {loss}", err=True)
    if strict and rendered.losses:
        sys.exit(UsageError.exit_code)
