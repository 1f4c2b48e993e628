"""Launchers that start a process a rank: programs (torchrun, accelerate, deepspeed, mpirun) under `rlprof
wrap`, and trainers that start their own.

`nsys launch` makes one session of all that it starts, in which only one rank can open windows. So a launcher
runs as it is, with `RLPROF_WRAP_RANKS` set, and the first Python of each rank meets that in its
`sitecustomize`: it becomes its own command behind `python -m rlprof_ops.rayenv.wrap`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rlprof_ops import backends, env_names
from rlprof_ops.host.log_line import log
from rlprof_ops.runtime.process.worker_identity import RANK_VARIABLES
from rlprof_ops.runtime.trainer_request import request_of

_PROGRAMS = ("torchrun", "accelerate-launch", "deepspeed", "mpirun", "mpiexec", "orterun")
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
)
_BEFORE = ("python", "env", "nohup", "nice", "uv", "run")


def launcher_of(argv: Sequence[str]) -> str:
    """The launcher that a command line starts (`torchrun`, `torch.distributed.run`); "" for any other
    program.
    """
    words = iter(argv)
    for word in words:
        name = os.path.basename(word)
        if not name.endswith(".py"):  # `mpiexec.hydra`, `python3.11`; a script may be called torchrun.py
            name = name.partition(".")[0]
        if name in _PROGRAMS:
            return name
        if name == "accelerate":
            return name if next(words, "") == "launch" else ""
        if word == "-m":
            module = next(words, "")
            return module if module in _MODULES else ""
        if word in ("-W", "-X"):
            next(words, "")
        elif name.rstrip("0123456789") not in _BEFORE and not word.startswith("-") and "=" not in name:
            return ""
    return ""


def wrap_this_rank() -> None:
    """Become this process's own command under its profiler, where a launcher of `rlprof wrap` started it.

    Returns in the launcher's own processes and in helpers of `multiprocessing`; what a rank starts in turn
    does not come here.
    """
    worker = os.environ.get(env_names.WRAP_RANKS)
    if worker is None or launcher_of(sys.orig_argv) or not _may_be_a_rank():
        return
    del os.environ[env_names.WRAP_RANKS]
    try:
        os.execv(sys.executable, [*_wrap(worker), "--", sys.executable, *sys.orig_argv[1:]])
    except OSError as error:
        log(f"this rank runs unprofiled: {sys.executable}: {error.strerror or error}")


def as_a_rank(worker: str, rank: int, argv: Sequence[str]) -> list[str]:
    """The command by which a trainer's process starts rank `rank` of `worker`: with its profiler in front
    where the request selects it, else `argv` itself.
    """
    request = request_of(os.environ)
    wanted = os.environ.get(env_names.ON_DEMAND, "").strip().lower()
    if not (request and request.for_worker(worker, rank)) and not backends.wraps(wanted):
        return [*argv]
    return [*_wrap(worker), "--rank", str(rank), "--", *argv]


def _wrap(worker: str) -> list[str]:
    """By its path: `-m` would look for the modules of Python in the working folder first."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [sys.executable, os.path.join(package, "rayenv", "wrap", "__main__.py"), "--worker", worker]


def _may_be_a_rank() -> bool:
    """A line of code is one only where its launcher gave it a rank; Slurm's the launcher has too."""
    if any(word.startswith("from multiprocessing.") for word in sys.orig_argv):
        return False
    return sys.argv[:1] != ["-c"] or any(os.environ.get(name) for name in RANK_VARIABLES[:-1])
