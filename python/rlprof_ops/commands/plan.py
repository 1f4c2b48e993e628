"""`rlprof plan`: what a request will give, before anything is submitted."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import click

from rlprof_ops.commands._framework import FrameworkName
from rlprof_ops.commands._request_options import request_options


@click.command(short_help="Print the captures of FILE or RLPROF_*: reports, disk, warnings.")
@click.argument("file", required=False, type=click.Path())
@click.option(
    "--world",
    metavar="NAME=RANKS,...",
    help="Ranks of each worker, e.g. policy_worker=8,generation_worker=4.",
)
@click.option("--framework", type=FrameworkName(), help="The trainer, for its workers' phases.")
@click.option(
    "--trainer-config",
    type=click.Path(),
    metavar="FILE",
    help="Take the world from the trainer's own YAML (needs --framework).",
)
@click.option(
    "--gpus-per-node", type=click.IntRange(1), metavar="N", help="GPUs of a node, where the file says `all`."
)
@click.option("--steps-total", type=click.IntRange(1), metavar="N", help="The run's last step.")
@click.option("--resume-from", type=click.IntRange(1), metavar="K", help="The first step that will run.")
@click.option("--json", "as_json", is_flag=True, help="The plan as JSON.")
@click.option("--from-env", is_flag=True, help="No FILE: RLPROF_* and NRL_* variables only.")
@click.option(
    "--resolved", is_flag=True, help="Print only the checked request, as RLPROF_REQUEST_JSON carries it."
)
@request_options
def command(
    file: str | None,
    world: str | None,
    framework: str | None,
    trainer_config: str | None,
    gpus_per_node: int | None,
    steps_total: int | None,
    resume_from: int | None,
    as_json: bool,
    from_env: bool,
    resolved: bool,
    overrides: dict[str, str],
) -> None:
    """Print the captures of FILE (or of the RLPROF_* variables): reports, disk, warnings. A bad request exits
    with 2.

    Example: rlprof plan profile.yaml --world policy_worker=8,generation_worker=4 --steps-total 100
    """
    from rlprof_ops import trainers
    from rlprof_ops.backends import Where
    from rlprof_ops.errors import UsageError
    from rlprof_ops.job.knobs import filled
    from rlprof_ops.request import load_request
    from rlprof_ops.request.check import check_request
    from rlprof_ops.request.planning import plan
    from rlprof_ops.trainers.ranks_by_worker import parse_world, world_of_trainer

    if from_env and file:
        raise UsageError(f"--from-env reads variables only; leave out {file!r}, or set RLPROF_REQUEST to it")
    request = load_request(file, os.environ, overrides)
    remarks = check_request(request, Where(trainer=framework or ""), filled(os.environ))
    if resolved:
        click.echo(request.to_json())
        return
    dialect = trainers.get(framework) if framework else None
    if trainer_config and dialect is None:
        raise UsageError("--trainer-config needs --framework, to know whose file it is")
    ranks = parse_world(world) if world else None
    if trainer_config and dialect and ranks is None:
        ranks = world_of_trainer(dialect, trainer_config, gpus_per_node)
    phases = {name: dialect.phases(name) for name in ranks} if dialect and ranks else None
    made = plan(request, ranks, steps_total, resume_from, phases)
    made = replace(made, warnings=(*request.notes, *remarks, *made.warnings))
    if as_json:
        from rlprof_ops.commands._plan_output import plan_json

        click.echo(json.dumps(plan_json(request, made)))
    else:
        from rlprof_ops.commands._plan_output import print_plan

        print_plan(request, made)
