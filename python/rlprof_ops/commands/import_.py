"""`rlprof import`: a trainer's configuration as a request."""

from __future__ import annotations

import os
import sys

import click

from rlprof_ops.commands._framework import FrameworkName


@click.command(
    context_settings={"ignore_unknown_options": True},
    short_help="Read a trainer's own configuration back into a request.",
)
@click.option("--framework", required=True, type=FrameworkName(), help="Whose configuration.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of YAML.")
@click.argument("source", nargs=-1, required=True, metavar="FILE_OR_OVERRIDES...")
def command(framework: str, as_json: bool, source: tuple[str, ...]) -> None:
    """Read a trainer's file or launch script (- for stdin), its overrides, or both, back into a request,
    printed
    as YAML. Exits with 2 when nothing of the trainer's profiling stands in it.

    Example: rlprof import --framework verl 'global_profiler.tool=nsys' 'global_profiler.steps=[1,2]'
    """
    from rlprof_ops import trainers
    from rlprof_ops.errors import UsageError
    from rlprof_ops.request.yaml_file import request_yaml

    dialect = trainers.get(framework)
    text, name = _text(source, env="env" in dialect.formats)
    imported = dialect.import_(text, name)
    click.echo(imported.request.to_json() + "\n" if as_json else request_yaml(imported.request), nl=False)
    for note in imported.notes:
        click.echo(f"rlprof: {note}", err=True)
    if not imported.found:
        sys.exit(UsageError.exit_code)


def _text(source: tuple[str, ...], env: bool) -> tuple[str, str]:
    """What to read and what to call it: stdin, a file, overrides, or a file with overrides over it."""
    import shlex

    from rlprof_ops.request.yaml_file import read_file

    first, rest = source[0], source[1:]
    if first == "-":
        text, name = sys.stdin.read(), "stdin"
    elif os.path.exists(first) or (not rest and "=" not in first):
        text, name = read_file(first), first
    else:
        return shlex.join(source), "overrides"
    if not rest:
        return text, name
    if env:
        return f"{text}\n{shlex.join(rest)}\n", f"{name} and overrides"
    import json

    from rlprof_ops.trainers.hydra import read_overrides, read_settings
    from rlprof_ops.trainers.hydra_defaults import merge

    whole = merge(read_settings(text, name), read_overrides(shlex.join(rest), "overrides"))
    return json.dumps(whole), f"{name} and overrides"
