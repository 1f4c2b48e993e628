"""`rlprof import`: a trainer's configuration as a request."""

from __future__ import annotations

import os
import sys

import click

from rlprof_ops.frameworks import NAMES


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--framework", required=True, type=click.Choice(NAMES), help="Whose configuration.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of YAML.")
@click.argument("source", nargs=-1, required=True, metavar="FILE_OR_OVERRIDES...")
def command(framework: str, as_json: bool, source: tuple[str, ...]) -> None:
    """Read a trainer's file (- for stdin) or its overrides back into a request, printed as YAML.

    Example: rlprof import --framework verl 'global_profiler.tool=nsys' 'global_profiler.steps=[1,2]'
    """
    import shlex

    from rlprof_ops import frameworks
    from rlprof_ops.request.yaml_file import read_file, request_yaml

    dialect = frameworks.get(framework)
    if source == ("-",):
        text, name = sys.stdin.read(), "stdin"
    elif len(source) == 1 and (os.path.exists(source[0]) or "=" not in source[0]):
        text, name = read_file(source[0]), source[0]
    else:
        text, name = shlex.join(source), "overrides"
    imported = dialect.import_(text, name)
    click.echo(imported.request.to_json() + "\n" if as_json else request_yaml(imported.request), nl=False)
    for note in imported.notes:
        click.echo(f"rlprof: {note}", err=True)
