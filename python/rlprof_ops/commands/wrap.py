"""`rlprof wrap`: a process outside Ray, started under the profiler that the request asks for."""

from __future__ import annotations

import os

import click

from rlprof_ops import env_names


@click.command(
    context_settings={"allow_interspersed_args": False},
    short_help="Run CMD under a profiler when the request selects this rank.",
)
@click.option(
    "--worker",
    metavar="NAME",
    help="The worker's name, as the request's patterns match it. Default: trainer.",
)
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Default: RANK, or what MPI or Slurm says.")
@click.option(
    "--request",
    "path",
    type=click.Path(),
    metavar="FILE",
    help="Default: RLPROF_REQUEST_JSON, RLPROF_REQUEST and the RLPROF_* variables.",
)
@click.option("--show", is_flag=True, help="Print the command that would run, and end.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
def command(
    worker: str | None, rank: int | None, path: str | None, show: bool, program: tuple[str, ...]
) -> None:
    """Run CMD under nsys or rocprof-sys when the request selects this worker and rank; otherwise run it as it
    is. Where CMD is a launcher (torchrun, python -m torch.distributed.run, accelerate launch, deepspeed,
    mpirun), that holds for each process that it starts.

    CMD's windows are opened and closed by the adapter of its trainer (TRL and any transformers.Trainer need
    no change), or by CMD itself with rlprof_ops.runtime.profiler. The exit code is CMD's. Outside a job
    reports go to RLPROF_RUN_DIR, else to a new folder in rlprof-profiles/, with a manifest of every window
    that was asked for.

    Example: srun rlprof wrap -- python train_grpo.py
    """
    import shlex

    from rlprof_ops.rayenv.wrap import wrapped_run
    from rlprof_ops.rayenv.wrap.standalone import start, wrapped_command
    from rlprof_ops.request import load_request, request_from_json
    from rlprof_ops.runtime.process.launchers import launcher_of
    from rlprof_ops.runtime.process.worker_identity import rank_from

    text = os.environ.get(env_names.REQUEST_JSON)
    request = request_from_json(text) if text and not path else load_request(path, os.environ)
    request = request.in_folder(os.getcwd()) if request.output_dir else request  # CMD may go to another one
    for note in request.notes:
        click.echo(f"rlprof: {note}", err=True)
    launcher = launcher_of(program)
    if launcher and rank is not None:
        raise click.UsageError(f"--rank {rank}: {launcher} gives each process its own; leave --rank out")
    env = {**os.environ, **wrapped_run.environment(request, os.environ)}
    made = wrapped_command(worker, rank_from(env) if rank is None else rank, program, request, env)
    if show:
        click.echo(shlex.join(made.argv))
        if env_names.WRAP_RANKS in made.env:
            click.echo(f"rlprof: each process that {launcher} starts is wrapped by itself", err=True)
        return
    if made.env.get(env_names.NOT_WRAPPED):
        click.echo(f"rlprof: runs unprofiled: {made.env[env_names.NOT_WRAPPED]}", err=True)
    start(made, program, request)
