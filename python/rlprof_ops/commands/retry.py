"""`rlprof retry`: the same job again, for the captures that are missing."""

from __future__ import annotations

import os
from dataclasses import replace

import click

from rlprof_ops.commands._jobs import complete
from rlprof_ops.commands._sbatch_command import RetryCommand, forwarded_options, words_of


@click.command(
    cls=RetryCommand,
    options_metavar="[OPTIONS] [ANY SBATCH OPTION] [-- COMMAND ...]",
    short_help="Submit JOB again for the captures that did not end whole.",
)
@click.argument("job", shell_complete=complete)
@forwarded_options
@click.option(
    "--set",
    "settings",
    metavar="NAME[=VALUE]",
    multiple=True,
    help="A knob or any variable for the job, over what it had.",
)
@click.option("--dry-run", is_flag=True, help="Show the sbatch line and its environment, and submit nothing.")
@click.option("--wait", is_flag=True, help="Follow the job to its end, as rlprof submit does.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, the rest on stderr.")
@click.pass_context
def command(
    ctx: click.Context, job: str, settings: tuple[str, ...], dry_run: bool, wait: bool, as_json: bool
) -> None:
    """Submit JOB again, asking only for the captures that did not end in a whole report.

    Flags of sbatch and a COMMAND given here come after, or instead of, those it had. Nothing to do ends with
    0.

    Example: rlprof retry 4711 --time=2:00:00 --wait
    """
    from rlprof_ops.collect.harvest.manifest import Manifest
    from rlprof_ops.collect.harvest.manifest_table import printable_lines
    from rlprof_ops.commands import _submitting
    from rlprof_ops.errors import RlprofError
    from rlprof_ops.job.run_folder import find
    from rlprof_ops.operate.job_status import look
    from rlprof_ops.submit import resubmit, sbatch_line
    from rlprof_ops.submit.missing_captures import missing_request

    known = find(job)
    if known.run is None:
        raise RlprofError(
            f"job {known.id} has no run folder, so there is no manifest of it: nothing to retry"
        )
    view = look(known)
    if view.state == "harvesting":
        raise RlprofError(
            f"job {known.id}: {view.harvest}; what is missing is known then, or after"
            f" rlprof harvest {known.id}"
        )
    if view.state in ("waiting", "starting", "running", "ending"):
        raise RlprofError(
            f"job {known.id} still runs; what is missing is known when it has ended (rlprof stop {known.id})"
        )
    manifest = Manifest.load(known.run)
    request = missing_request(manifest, resubmit.request_of(known.run))
    if not request:
        click.echo(f"job {known.id}: no capture is missing")
        return
    asked, notes = resubmit.asked_again(known.run, os.environ)
    for note in notes:
        click.echo(f"note: {printable_lines(note)}", err=True)
    knobs, from_shell = sbatch_line.parse_settings(settings, os.environ)
    words = words_of(ctx)
    asked = replace(
        asked,
        sbatch=(*asked.sbatch, *words.sbatch),
        knobs={**asked.knobs, **knobs},
        request=resubmit.with_secrets(request, os.environ),
        retry_of=known.id,
        from_shell=(asked.from_shell - set(knobs)) | from_shell,
        overrides={},
        command=sbatch_line.command_line(words.command) if words.command else asked.command,
    )
    world = ",".join(f"{name}={ranks}" for name, ranks in manifest.world.items()) or None
    _submitting.go(asked, resubmit.home_of(known.run), _submitting.Wishes(world, dry_run, wait, as_json))
