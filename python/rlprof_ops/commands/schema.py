"""`rlprof schema`: the JSON Schemas of the documents that people write and programs read."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import click

SCHEMAS = {
    "request": "What to profile, as YAML: [the request](request.md).",
    "manifest": (
        "What was planned and what came home: `manifest.json`, written by `rlprof harvest`, see"
        " [harvest](collect.md#harvest)."
    ),
    "run": (
        "What a job was asked to do, where, and how it ended: `run.json`, see"
        " [run.json](contracts.md#runjson)."
    ),
    "report": (
        "The answer as numbers: `report.json`, written by `rlprof report`, see"
        " [definitions](report.md#definitions)."
    ),
}


def load(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `request`, `manifest`, `run` or `report`."""
    if name == "request":
        from rlprof_ops.request.yaml_schema import schema

        return schema()
    if name == "manifest":
        from rlprof_ops.collect.harvest.manifest_schema import schema as of_manifest

        return of_manifest()
    if name == "run":
        from rlprof_ops.job.run_json import schema as of_run

        return of_run()
    file = resources.files("rlprof_ops.analyze.output").joinpath("report.schema.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@click.command(short_help="Print the JSON Schema of a document.")
@click.argument("document", type=click.Choice(list(SCHEMAS)), default="request")
def command(document: str) -> None:
    """Print the JSON Schema of a request (default), a manifest, a run or a report, for editors and programs.

    A request that begins with `# yaml-language-server: $schema=rlprof.schema.json` is then checked as you
    write it.

    Example: rlprof schema > rlprof.schema.json
    """
    click.echo(json.dumps(load(document), indent=2))
