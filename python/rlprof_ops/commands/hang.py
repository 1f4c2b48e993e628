"""`rlprof hang`: which rank is missing in which collective, from the dumps of PyTorch's flight recorder."""

from __future__ import annotations

import json
import sys

import click

from rlprof_ops.commands._jobs import run_argument
from rlprof_ops.errors import EXIT_INCOMPLETE


@click.command(short_help="Name the rank that a hang waits for, from flight-recorder dumps.")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="The whole verdict for programs.")
@click.option("--dump", is_flag=True, help="Only ask the processes of the running JOB for dumps.")
def command(run: str, as_json: bool, dump: bool) -> None:
    """Name the rank that a hang waits for, from the dumps of PyTorch's flight recorder.

    JOB is a job id, its run folder, or any folder of dumps (nccl_trace_rank_3, as pickle or JSON). Says
    which collective of which group waits for whom, what the missing rank did last, and which collectives do
    not match. No code of a dump is run. Ends with 3 when no dump could be read.

    Example: rlprof hang 4711
    """
    from rlprof_ops.analyze.hang.hang_text import explain
    from rlprof_ops.job.run_folder import folder_of, run_folder

    if dump:
        from rlprof_ops.operate.capture_request import ask_dumps

        ask_dumps(run_folder(run))
        click.echo(f"asked; the next pass of the log sync brings the dumps, then: rlprof hang {run}")
        return
    folder = folder_of(run)
    lines, answer = explain(folder)
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        click.echo("\n".join(lines).rstrip(), nl=bool(lines))
    if not answer["verdicts"]:
        hint = (
            f"; rlprof hang {run} --dump asks a running job for them"
            if (folder / "run.json").exists()
            else ""
        )
        click.echo(f"rlprof: {folder}: no dump of PyTorch's flight recorder could be read{hint}", err=True)
        sys.exit(EXIT_INCOMPLETE)
