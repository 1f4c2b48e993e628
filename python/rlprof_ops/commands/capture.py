"""`rlprof capture`: open windows in a running job."""

from __future__ import annotations

import math
import sys

import click

from rlprof_ops import backends
from rlprof_ops.commands._jobs import job_argument
from rlprof_ops.errors import EXIT_INCOMPLETE, UsageError
from rlprof_ops.request.problems import numbers_of_range


@click.command(short_help="Open windows in the running JOB and wait for their reports.")
@job_argument
@click.option(
    "--workers", required=True, help="Patterns of worker names, with commas: '*policy*,controller'."
)
@click.option("--ranks", default="all", show_default=True, help="Ranks with commas, or all.")
@click.option("--steps", metavar="next:N", help="The next N steps of each worker.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    help="From now on for so long, at most a day.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", *backends.names_allowed()]),
    default="auto",
    show_default=True,
    help="auto: nsight for workers that run under nsys, else torch.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the backend, e.g. with_stack=true.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, max=7 * 86_400),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait no longer for reports.",
)
def command(
    job: str,
    workers: str,
    ranks: str,
    steps: str | None,
    seconds: float | None,
    backend: str,
    options: tuple[str, ...],
    timeout_s: float,
) -> None:
    """Open windows in the running JOB (a job id or a run folder) and wait until their reports are in its run
    folder.

    The job goes on meanwhile. Ends with 3 when a report did not come.

    Example: rlprof capture 4711 --workers '*policy*' --ranks 0 --steps next:2
    """
    from rlprof_ops.collect.harvest.manifest_table import printable
    from rlprof_ops.commands._progress import bar
    from rlprof_ops.job.run_folder import run_folder
    from rlprof_ops.operate.capture_request import capture, parse_next

    if math.isnan(seconds or 0) or math.isnan(timeout_s):
        raise UsageError("--seconds and --timeout take numbers, not nan")
    if (steps is None) == (seconds is None):
        raise UsageError("give one of --steps next:N and --seconds S")
    if steps is not None:
        parse_next(steps)
    patterns, wanted, chosen = split(workers), ranks_of(ranks), pairs(options)
    run = run_folder(job)
    with bar(sys.stderr, "reports") as progress:
        answers = capture(run, patterns, wanted, backend, steps, seconds, chosen, timeout_s, progress)
    for answer in answers:
        said = f"{answer.worker.name} on {answer.worker.node}: {answer.path or 'missing: ' + answer.reason}"
        click.echo(printable(said))
    if any(answer.path is None for answer in answers):
        sys.exit(EXIT_INCOMPLETE)


def split(text: str) -> tuple[str, ...]:
    """`"a, b"` -> `("a", "b")`; raises `UsageError` when nothing is named."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise UsageError("--workers names no worker")
    return found


def ranks_of(text: str) -> tuple[int, ...] | None:
    """`"0,2"` -> `(0, 2)`, `"all"` -> None."""
    if text.strip().lower() == "all":
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        meant = ",".join(map(str, numbers_of_range(text)))
        hint = f"; write {meant}" if meant else ""
        raise UsageError(f"--ranks is {text!r}: expected whole numbers with commas, or all{hint}")
    return tuple(map(int, parts))


def pairs(options: tuple[str, ...]) -> dict[str, str]:
    """`("a=b",)` -> `{"a": "b"}`."""
    wrong = [option for option in options if "=" not in option or option.startswith("=")]
    if wrong:
        raise UsageError(f"--option is {wrong[0]!r}: expected NAME=VALUE")
    return dict(option.split("=", 1) for option in options)
