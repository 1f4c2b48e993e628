"""`rlprof schema`: the JSON Schema of the request's YAML, for editors."""

from __future__ import annotations

import json

import click


@click.command()
def command() -> None:
    """Print the JSON Schema of a request, so that an editor completes and checks profile.yaml.

    Example: rlprof schema > rlprof.schema.json   (then: # yaml-language-server: $schema=rlprof.schema.json)
    """
    from rlprof_ops.request.schema import schema

    click.echo(json.dumps(schema(), indent=2))
