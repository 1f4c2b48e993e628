"""`rlprof convert`: a request and a trainer's own configuration, each in the other's words."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence

import click

from rlprof_ops import env_names, trainers
from rlprof_ops.commands._framework import FrameworkName
from rlprof_ops.commands._request_options import request_options
from rlprof_ops.errors import UsageError
from rlprof_ops.words import closest

OVERRIDES = "overrides"


@click.command(
    context_settings={"ignore_unknown_options": True},
    short_help="Turn a request into a trainer's words, or those into a request.",
)
@click.argument("source", nargs=-1, type=click.Path(allow_dash=True), metavar="[FILE_OR_OVERRIDES...]")
@click.option("--from", "reads", type=FrameworkName(), help="Whose words SOURCE is in. Default: a request.")
@click.option(
    "--base",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="The run's own configuration, over which --from reads SOURCE.",
)
@click.option("--to", "writes", type=FrameworkName(), help="Whose words to print. Default: a request.")
@click.option(
    "--format",
    "fmt",
    type=click.Choice(["env", "hydra", "yaml", "json"]),
    help="Default: what the trainer is started with; of a request YAML.",
)
@click.option("--strict", is_flag=True, help="Fail when the trainer cannot do all of the request.")
@request_options
@click.pass_context
def command(
    ctx: click.Context,
    source: tuple[str, ...],
    reads: str | None,
    base: str | None,
    writes: str | None,
    fmt: str | None,
    strict: bool,
    overrides: dict[str, str],
) -> None:
    """Print a request file as a trainer's variables, Hydra overrides or YAML (--to); or read a trainer's file
    or launch script (- for stdin), its overrides, or both, back into a request (--from); or both.

    Comments and stderr say what the trainer cannot do. Exits with 2 when nothing of the trainer's profiling
    stands in what --from reads.

    Example: rlprof convert --to verl profile.yaml
    """
    from rlprof_ops.backends import Where
    from rlprof_ops.request import load_request
    from rlprof_ops.request.check import check_request
    from rlprof_ops.request.yaml_file import request_yaml

    _check_words(ctx, source, reads, writes)
    formats = trainers.get(writes).formats if writes else ("yaml", "json")
    if fmt is not None and fmt not in formats:
        whose = f"{trainers.get(writes).title} is configured by" if writes else "a request is printed as"
        raise UsageError(f"--format {fmt}: {whose} {' or '.join(formats)}")
    found, losses, remarks = True, list[str](), list[str]()
    if reads:
        dialect = trainers.get(reads)
        imported = dialect.import_(*_text(source, base, env="env" in dialect.formats))
        request, found, remarks = imported.request, imported.found, [*imported.notes]
        if any(value is not None for value in overrides.values()):
            request = load_request(None, {env_names.REQUEST_JSON: request.to_json()}, overrides)
    else:
        request = load_request(source[0] if source else None, os.environ, overrides)
    if writes:
        remarks += [*request.notes, *check_request(request, Where(trainer=writes))]
        rendered = trainers.get(writes).render(request, fmt or formats[0])
        losses = [f"lost: {loss}" for loss in rendered.losses]
        click.echo(rendered.text, nl=False)
    else:
        click.echo(request.to_json() + "\n" if fmt == "json" else request_yaml(request), nl=False)
    for remark in (*remarks, *losses):
        click.echo(f"rlprof: {remark}", err=True)
    if not found or (strict and losses):
        sys.exit(UsageError.exit_code)


def _check_words(ctx: click.Context, source: Sequence[str], reads: str | None, writes: str | None) -> None:
    """A misspelt option of ours is no word of SOURCE. Raises UsageError."""
    own = [name for param in ctx.command.params for name in param.opts if name.startswith("--")]
    for word in source:
        near = closest(word.partition("=")[0], own, cutoff=0.8) if word.startswith("--") else None
        if near:
            raise UsageError(f"no option {word}. Did you mean {near}?")
    if not reads and not writes:
        raise UsageError("give --to TRAINER, --from TRAINER or both, as in: rlprof convert --to verl p.yaml")
    if reads and not source:
        raise UsageError(f"--from {reads} reads a file, overrides, or - for stdin; name one")
    if not reads and (len(source) > 1 or (source and source[0].startswith("-"))):
        raise UsageError(f"--to reads one request file, not {shlex.join(source)}; for overrides give --from")


def _text(source: Sequence[str], base: str | None, env: bool) -> tuple[str, str]:
    """What to read and what to call it: stdin, a file, overrides, or a file with one of these over it."""
    from rlprof_ops.request.yaml_file import read_file

    if base:
        return _over(read_file(base), base, *_text(source, None, env), env)
    first, rest = source[0], source[1:]
    if first == "-":
        text, name = sys.stdin.read(), "stdin"
    elif os.path.exists(first) or (not rest and "=" not in first):
        text, name = read_file(first), first
    else:
        return shlex.join(source), OVERRIDES
    if not rest:
        return text, name
    return _over(text, name, shlex.join(rest), OVERRIDES, env)


def _over(below: str, name: str, above: str, over: str, env: bool) -> tuple[str, str]:
    """Two texts as one, the second over the first."""
    from rlprof_ops.trainers.hydra import read_overrides, read_settings
    from rlprof_ops.trainers.hydra_defaults import merge

    read = read_overrides if over == OVERRIDES else read_settings
    called = f"{name} and {over}"
    if env:
        return f"{below}\n{above}\n", called
    return json.dumps(merge(read_settings(below, name), read(above, over))), called
