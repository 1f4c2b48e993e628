"""Launchers that start a process a rank: programs (torchrun, accelerate, deepspeed, mpirun) under `rlprof
wrap`, and trainers that start their own.

`nsys launch` makes one session of all that it starts, in which only one rank can open windows. So a launcher
runs as it is, with `RLPROF_WRAP_RANKS` set, and the first Python of each rank meets that in its
`sitecustomize`: it becomes its own command behind `python -m rlprof_ops.rayenv.wrap`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import chain

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
# What may stand before a launcher -> those of its options whose value is a word of its own.
_BEFORE = {
    "python": "-W -X --check-hash-based-pycs",
    "env": "-u --unset -C --chdir",
    "nohup": "",
    "nice": "-n --adjustment",
    "uv": """
        --extra --no-extra --group --no-group --only-group --no-editable-package --env-file -w --with
        --with-editable --with-requirements --package --python-platform --index --default-index -i --index-url
        --extra-index-url -f --find-links --index-strategy --keyring-provider -P --upgrade-package
        --upgrade-group --resolution --prerelease --prerelease-package --fork-strategy --exclude-newer
        --exclude-newer-package --no-sources-package --reinstall-package --link-mode -C --config-setting
        --config-settings --config-settings-package --no-build-isolation-package --no-build-package
        --no-binary-package --cache-dir --refresh-package -p --python --python-preference --color
        --allow-insecure-host --trusted-host --directory --project --config-file
    """,  # uv 0.13: uv run --help
}
_SPLIT = re.compile(r"(?:--split-string(?:=|$)|-[iv0]*S)(.*)", re.DOTALL)  # env's: a command line in a word


def launcher_of(argv: Sequence[str]) -> str:
    """The launcher that a command line starts (`torchrun`, `torch.distributed.run`); "" for any other
    program.
    """
    words: Iterator[str] = iter(argv)
    before = ""
    while word := next(words, ""):
        name = os.path.basename(word)
        if not name.endswith(".py"):  # `mpiexec.hydra`, `python3.11`; a script may be called torchrun.py
            name = name.partition(".")[0]
        if word == "-m":
            module = next(words, "")
            return module if module in _MODULES else ""
        if before == "env" and (line := _SPLIT.fullmatch(word)):
            words = chain(_split(line[1] or next(words, "")), words)
        elif word.startswith("-"):
            if _has_its_value_behind(word, before):
                next(words, "")
        elif name in _PROGRAMS:
            return name
        elif name == "accelerate":
            return name if next(words, "") == "launch" else ""
        elif (plain := name.rstrip("0123456789")) in _BEFORE:
            before = plain
        elif not (before == "uv" and word == "run") and not (before == "env" and "=" in word):
            return ""
    return ""


def _split(line: str) -> list[str]:
    """The words of a command line; none where it cannot be read, which `env` then says."""
    try:
        return shlex.split(line)
    except ValueError:
        return []


def _has_its_value_behind(option: str, program: str) -> bool:
    """Whether the next word is this option's value; of short ones in one word, as `-iu`, the last can have it
    there, and one before that has the rest of the word.
    """
    known = _BEFORE.get(program, "").split()
    if option.startswith("--"):
        return option in known
    letters = [f"-{letter}" in known for letter in option[1:]]
    return any(letters) and letters.index(True) == len(letters) - 1


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
