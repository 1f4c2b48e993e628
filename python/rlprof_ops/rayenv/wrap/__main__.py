"""`python -m rlprof_ops.rayenv.wrap [--worker NAME] [--rank R] PROGRAM …`: `rlprof wrap` for a Python without
click.

What the Ray plugin does for actors, for processes that another launcher starts (torchrun, srun, mpirun). A
process that no capture selects, or whose request cannot be read, is started as it is. Example:

    torchrun --no-python --nproc-per-node 8 python -m rlprof_ops.rayenv.wrap --worker trainer python train.py

With `--rank` it is a rank that a process of a trainer has started (`launchers.as_a_rank`), and leads no job.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn

from rlprof_ops import env_names
from rlprof_ops.backends.wrapping import Command
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.rayenv.wrap import wrapped_run
from rlprof_ops.rayenv.wrap.standalone import start, wrapped_command
from rlprof_ops.runtime.process.event_log import log
from rlprof_ops.runtime.process.worker_identity import rank_from
from rlprof_ops.runtime.profiler import request_from_env

_USAGE = "usage: python -m rlprof_ops.rayenv.wrap [--worker NAME] [--rank R] PROGRAM [ARGUMENT …]"


def main(argv: list[str] | None = None) -> NoReturn:
    """Become the program, or run it under nsys and end with its exit code. It is 1 for a wrong command line
    and for a worker that must not start unprofiled, 127 for no such program.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    worker = "worker"
    if words[:1] == ["--worker"] and len(words) > 1:
        worker, words = words[1], words[2:]
    if words[:1] == ["--rank"] and len(words) > 1:
        os.environ.update({env_names.RANK: words[1]})
        os.environ.pop(env_names.LEADS, None)
        os.environ.pop(env_names.NOT_WRAPPED, None)  # its parent's
        words = words[2:]
    if words[:1] == ["--"]:
        words = words[1:]
    if not words or words[0].startswith("-"):
        sys.exit(_USAGE)
    if shutil.which(words[0]) is None:
        print(f"rlprof: no program {words[0]!r}", file=sys.stderr)
        sys.exit(127)
    try:
        request = request_from_env(os.environ)
        request = request and request.in_folder(os.getcwd())  # the program may go to another one
    except Exception as error:
        log(f"nothing is profiled: {error}")
        request = None
    env = {**os.environ, **wrapped_run.environment(request, os.environ)}
    try:
        made = wrapped_command(worker, rank_from(env), words, request, env)
    except UsageError as error:  # options that make no command line
        if request and any(spec.on_error == "fail" for spec in request.captures):
            _fail(error)
        made = Command(tuple(words), {**env, env_names.WORKER: worker, env_names.NOT_WRAPPED: str(error)})
    except RlprofError as error:
        _fail(error)
    if made.env.get(env_names.NOT_WRAPPED):
        log(f"runs unprofiled: {made.env[env_names.NOT_WRAPPED]}")
    try:
        start(made, words, request)
    except RlprofError as error:
        _fail(error)


def _fail(error: RlprofError) -> NoReturn:
    print(f"rlprof: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
