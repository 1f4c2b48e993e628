"""`rlprof wrap`: a process outside Ray, started under the profiler that the request asks for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rlprof_ops.rayenv.wrap.standalone import Command


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--worker",
    metavar="NAME",
    help="The worker's name, as the request's patterns match it. Default: trainer.",
)
@click.option(
    "--rank", type=click.IntRange(0), metavar="R", help="Default: RANK, SLURM_PROCID, or what MPI says."
)
@click.option(
    "--request",
    "path",
    metavar="FILE",
    help="Default: RLPROF_REQUEST_JSON, RLPROF_REQUEST and the RLPROF_* variables.",
)
@click.option("--show", is_flag=True, help="Print the command that would run, and end.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
def command(
    worker: str | None, rank: int | None, path: str | None, show: bool, program: tuple[str, ...]
) -> None:
    """Run CMD under nsys or rocprof-sys when the request selects this worker and rank; otherwise run it as it
    is.

    CMD's windows are opened and closed by the adapter of its trainer (TRL and any transformers.Trainer need
    no change), or by CMD itself with rlprof_ops.runtime.profiler. The exit code is CMD's.

    Example: srun rlprof wrap -- python train_grpo.py
    """
    import shlex

    from rlprof_ops.rayenv.wrap.standalone import rank_from, wrapped_command
    from rlprof_ops.request import load_request, request_from_json

    text = os.environ.get("RLPROF_REQUEST_JSON")
    request = request_from_json(text) if text and not path else load_request(path, os.environ)
    made = wrapped_command(
        worker, rank_from(os.environ) if rank is None else rank, program, request, os.environ
    )
    if show:
        click.echo(shlex.join(made.argv))
        return
    if made.env.get("RLPROF_NOT_WRAPPED"):
        click.echo(f"rlprof: runs unprofiled: {made.env['RLPROF_NOT_WRAPPED']}", err=True)
    run(made)


def run(made: Command) -> None:
    """Become the command; stay its parent where it is nsys's, or where the tool hides the exit code. Does
    not return.
    """
    from rlprof_ops.errors import RlprofError
    from rlprof_ops.runtime.process import nsys_launcher

    try:
        if made.nsys:
            sys.stdout.flush()
            nsys_launcher.run(made.argv[: made.nsys], made.argv[made.nsys :], made.env, made.on_error)
        if made.exit_code_file is None:
            sys.stdout.flush()
            os.execvpe(made.argv[0], made.argv, made.env)
        sys.exit(_supervise(made, made.exit_code_file))
    except OSError as error:
        raise RlprofError(f"cannot run {made.argv[0]!r}: {error.strerror or error}") from None


def _supervise(made: Command, exit_code_file: str) -> int:
    """Run it as a child that gets our signals; its exit code is in the file, unless it did not come that
    far.
    """
    child = subprocess.Popen(made.argv, env=dict(made.env))

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    code = child.wait()
    try:
        with open(exit_code_file, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 128 - code if code < 0 else code or 1
    finally:
        shutil.rmtree(os.path.dirname(exit_code_file), ignore_errors=True)
