"""`rlprof diff`: what changed between two runs, with the noise stated, and an exit code for continuous
integration.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from rlprof_ops.commands._jobs import complete
from rlprof_ops.errors import EXIT_FAILED, EXIT_INCOMPLETE, EXIT_UNJUDGED, UsageError


@click.command(short_help="Compare two runs: job ids, run folders, or their report.json.")
@click.argument("before", shell_complete=complete)
@click.argument("after", shell_complete=complete)
@click.option(
    "--fail-if",
    "rules",
    multiple=True,
    metavar="RULE",
    help=(
        "Exit 1 when broken beyond the noise: 'step>5%', 'train>20ms', 'missing>0', 'stragglers>0'. May be"
        " repeated."
    ),
)
@click.option(
    "--as",
    "same",
    multiple=True,
    metavar="BEFORE=AFTER",
    help=(
        "A worker of the first run and what it is called in the second. May be repeated. One worker a side is"
        " the same one."
    ),
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write both runs side by side to this HTML file, too; never over one of somebody else.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    help="How many files are read at once where a run has no report.json that is still right.",
)
def command(
    before: str,
    after: str,
    rules: tuple[str, ...],
    same: tuple[str, ...],
    page: Path | None,
    as_json: bool,
    jobs: int | None,
) -> None:
    """Compare two runs (job ids, run folders, or their report.json).

    A change is called one when it exceeds 1 % and what chance makes of equal runs whose neighbouring steps
    are alike (at most 2 of 100 equal pairs of runs differ in anything). Says how sure it is, and how many
    more steps would tell. Ends with 4 when a rule could not be judged, and none is broken.

    A run folder's report.json is read where it is still right: not while the job goes on, nor after run.json
    or manifest.json, or a report in a folder without them, has changed. One that is named itself is taken as
    it is.

    Example: rlprof diff logs/4711-logs logs/4802-logs --fail-if 'step>5%'
    """
    from rlprof_ops.analyze.answer_file import is_answer
    from rlprof_ops.analyze.output.diff_text import show
    from rlprof_ops.analyze.output.diff_workers import matched
    from rlprof_ops.analyze.output.run_diff import compare, parse_rule, unjudged, violations
    from rlprof_ops.analyze.reporting import load_answer, was_read
    from rlprof_ops.collect.harvest.manifest_table import printable
    from rlprof_ops.job import own_files
    from rlprof_ops.job.run_folder import folder_of

    if page is not None:
        own_files.check_ours(page)
    one, two = (
        load_answer(file if is_answer(file := Path(run)) else folder_of(run), jobs) for run in (before, after)
    )
    for run, answer in ((before, one), (after, two)):
        if not was_read(answer):
            click.echo(
                f"rlprof: {run}: nothing of it could be read, so there is nothing to compare", err=True
            )
            sys.exit(EXIT_UNJUDGED if rules else EXIT_INCOMPLETE)
    one, said = matched(one, two, same)
    difference = compare(one, two, said)
    parsed = [parse_rule(rule, difference) for rule in rules]
    broken, open_rules = violations(parsed, difference), unjudged(parsed, difference)
    if page is not None:
        from rlprof_ops.analyze.page.compare import render_comparison

        try:
            own_files.write(page, render_comparison(one, two, (before, after)))
        except OSError as error:
            raise UsageError(f"--page {page}: cannot be written ({error.strerror})") from error
    if as_json:
        click.echo(
            json.dumps(
                difference.to_dict() | {"broken": broken, "unjudged": open_rules},
                indent=1,
                ensure_ascii=False,
            )
        )
    else:
        show(difference, before, after)
    for text in open_rules:
        click.echo(printable(f"not judged {text}"), err=True)
    for text in broken:
        click.echo(printable(f"failed {text}"), err=True)
    sys.exit(EXIT_FAILED if broken else EXIT_UNJUDGED if open_rules else 0)
