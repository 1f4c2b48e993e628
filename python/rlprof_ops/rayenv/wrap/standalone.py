"""The same wrapping for a process that Ray does not start: what `rlprof wrap … -- CMD` and `python -m
rlprof_ops.rayenv.wrap … CMD` run instead of CMD.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

from rlprof_ops import env_names, trainers
from rlprof_ops.backends import nsight, rocprof_sys, validate
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.job.knobs import python_path
from rlprof_ops.rayenv.worker_selection import Identity
from rlprof_ops.rayenv.wrap import rocprof
from rlprof_ops.rayenv.wrap.option_trial import Trials
from rlprof_ops.rayenv.wrap.wrap_context import WrapError, nsys_command, nsys_is_missing, specs_for

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec, ProfileRequest

TRAINER = "trainer"
_RUNNER = Path(__file__).with_name("rocprof_script.py")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
_PYTHON_TAKES_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True)
class Command:
    """What to run. `exit_code_file`: the tool hides the program's exit code, which is found there instead."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    exit_code_file: str | None = None


def wrapped_command(
    worker: str | None,
    rank: int | None,
    argv: Sequence[str],
    request: ProfileRequest | None,
    env: Mapping[str, str],
) -> Command:
    """CMD as the request wants it: under nsys, under rocprof-sys, or as it is.

    Args:
        worker: None for a trainer whose adapter names it; it counts as `trainer` here.
        argv: the program and its arguments; never seen by a shell.

    Raises `UsageError` for options that the tool refuses, `RlprofError` when a selected process cannot be
    profiled here and its capture has `on_error: fail`.
    """
    full = dict(env)
    if env.get(env_names.ADAPTERS, "1") != "0":
        full["PYTHONPATH"] = python_path(env.get("PYTHONPATH"))
        full.update(trainers.environment())
    identity = Identity(worker or TRAINER, rank)
    specs = specs_for(request, worker or TRAINER, rank, env)
    if worker or specs:
        full |= {env_names.WORKER: worker or TRAINER, env_names.RANK: "" if rank is None else str(rank)}
    for spec in specs:
        full.update(spec.env)
    if specs and request:
        full[env_names.REQUEST_JSON] = request.to_json()
    for spec in specs:
        errors = validate(spec).errors
        if errors:
            raise UsageError("; ".join(errors))
        try:
            if spec.backend == "nsight":
                return _under_nsys(identity, argv, spec, full)
            if spec.backend == "rocprof_sys":
                return _under_rocprof(identity, argv, spec, full)
        except (WrapError, rocprof_sys.FrontEndError) as error:
            if spec.on_error == "fail":
                raise RlprofError(f"{identity} cannot be profiled: {error}") from None
            full[env_names.NOT_WRAPPED] = str(error)
    return Command(tuple(argv), full)


def _under_nsys(
    identity: Identity, argv: Sequence[str], spec: CaptureSpec, env: Mapping[str, str]
) -> Command:
    nsys = nsight.find(env)
    if nsys is None:
        raise WrapError(nsys_is_missing(identity.worker or "", identity.rank, env))
    command = nsys_command(identity, spec, env, nsys)
    return Command((*command.words(), *argv), {**env, **command.variables})


def _under_rocprof(
    identity: Identity, argv: Sequence[str], spec: CaptureSpec, env: dict[str, str]
) -> Command:
    python, rest = split_python(argv)
    folder = Path(env.get(env_names.NODE_DIR) or env.get(env_names.RUN_DIR) or "rlprof-profiles").absolute()
    variables = {name: value for name, value in env.items() if name.startswith("ROCPROFSYS_")}
    asked = rocprof.Asked(
        spec.options, spec.flags if spec.flags or spec.options else rocprof.DEFAULT_FLAGS, variables
    )
    target = folder / "profiles" / "rocprof_sys" / (identity.worker or "") / f"rank{identity.rank or 0}"
    context = SimpleNamespace(py_executable=shlex.join(python), env_vars=env, command_prefix=[])
    wrap = asyncio.run(rocprof.prepare(asked, identity, spec, True, context, Trials(), target, env))
    codes = os.path.join(tempfile.mkdtemp(prefix="rlprof-wrap-"), "exit_code")
    path = os.pathsep.join(filter(None, [wrap.package_folder, env.get("PYTHONPATH")]))
    command = (*python, "-m", "rocprofsys", *wrap.words, "--", str(_RUNNER), codes, *rest)
    return Command(command, {**env, **wrap.variables, "PYTHONPATH": path}, codes)


def split_python(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """`python -u train.py --x` -> (["python", "-u"], ["train.py", "--x"]).

    Raises `UsageError` for anything but Python: rocprof-sys starts Python scripts alone.
    """
    program = os.path.basename(shutil.which(argv[0]) or argv[0])
    if not _PYTHON.fullmatch(program) and not _PYTHON.fullmatch(os.path.basename(argv[0])):
        raise UsageError(
            f"rocprof-sys starts Python scripts, and {argv[0]!r} is no Python: wrap what it starts, "
            "e.g. `torchrun --no-python … rlprof wrap --worker W -- python train.py`"
        )
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "-c", "-"):
        at += 2 if argv[at] in _PYTHON_TAKES_VALUE else 1
    if at >= len(argv) or argv[at] in ("-c", "-"):
        raise UsageError(f"rocprof-sys starts Python scripts: name one after {' '.join(argv[:at])!r}")
    return list(argv[:at]), list(argv[at:])


def run(made: Command) -> NoReturn:
    """Become the command; stay its parent where the tool hides the exit code.

    Raises `RlprofError` for a program that cannot be started.
    """
    try:
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
