"""What `submit` and `retry` have in common: show the plan, send, say what to type next, wait."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from rlprof_ops.errors import UsageError
from rlprof_ops.job.run_json import shown_request
from rlprof_ops.submit.sbatch_line import Submission, SubmitRequest, prepare
from rlprof_ops.submit.send import send


@dataclass(frozen=True)
class Wishes:
    """How a person wants it: `world` for the plan, a dry run, waiting, JSON."""

    world: str | None = None
    dry_run: bool = False
    wait: bool = False
    as_json: bool = False


def go(asked: SubmitRequest, cwd: Path, wishes: Wishes) -> None:
    """Check, print the plan, submit, and with `--wait` end with the job's exit code."""
    from rlprof_ops.backends import Where
    from rlprof_ops.request.check import check_request

    submission = prepare(asked, os.environ, cwd)
    where = Where(trainer=asked.framework or "")
    remarks = check_request(submission.request, where, submission.settings.values)
    for note in (*submission.notes, *remarks):
        click.echo(f"note: {note}", err=True)
    if not wishes.as_json:
        _plan(submission, wishes.world)
    if wishes.dry_run:
        _show(submission, wishes.as_json)
        return
    if not (submission.env["COMMAND"] or asked.sbatch or asked.retry_of):
        _ask()
    job = send(submission, cwd, os.environ)
    folder = submission.run_folder(job)
    if wishes.as_json and not wishes.wait:
        click.echo(
            json.dumps(
                {
                    "job": job,
                    "run_dir": str(folder),
                    "argv": submission.shown_argv(),
                    "request": shown_request(submission.request),
                }
            )
        )
    else:
        _say_next(job, folder, bool(submission.env["COMMAND"]), err=wishes.as_json)
    if wishes.wait:
        from rlprof_ops.commands._waiting import wait_for

        sys.exit(wait_for(job, folder, as_json=wishes.as_json))


def _ask() -> None:
    """Nothing but `rlprof submit` takes nodes that wait for somebody: a person is asked, a script says it."""
    if not sys.stdin.isatty():
        raise UsageError(
            "nothing says what to run: give the command after `--`, or -N 2 for a cluster that waits for you"
        )
    click.confirm("Submit a cluster without a command, that waits for you?", abort=True, err=True)


def _plan(submission: Submission, world: str | None) -> None:
    from rlprof_ops import trainers
    from rlprof_ops.commands._plan_output import print_plan
    from rlprof_ops.request.planning import plan
    from rlprof_ops.trainers.ranks_by_worker import parse_world

    if not submission.request:
        click.echo("nothing is profiled: no steps asked (--request FILE, or --steps and --workers)")
        return
    ranks = parse_world(world) if world else None
    dialect = trainers.get(submission.asked.framework) if submission.asked.framework else None
    phases = {name: dialect.phases(name) for name in ranks} if dialect and ranks else None
    print_plan(submission.request, plan(submission.request, ranks, None, None, phases))
    click.echo("")


def _show(submission: Submission, as_json: bool) -> None:
    if as_json:
        shown = {
            "argv": submission.shown_argv(),
            "env": submission.shown_env(),
            "request": shown_request(submission.request),
        }
        click.echo(json.dumps(shown, indent=1))
    else:
        click.echo(submission.shown())


def _say_next(job: str, folder: Path, has_command: bool, err: bool) -> None:
    lines = [f"job {job} submitted", f"run folder: {folder}", "next:"]
    steps = [
        f"rlprof status {job}",
        f"rlprof logs -f {job}" if has_command else f"rlprof attach {job}",
        f"rlprof stop {job}",
    ]
    for line in (*lines, *(f"  {step}" for step in steps)):
        click.echo(line, err=err)
