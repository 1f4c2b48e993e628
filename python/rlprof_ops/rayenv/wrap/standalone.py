"""The same wrapping for a process that Ray does not start: what `rlprof wrap … -- CMD` and `python -m
rlprof_ops.rayenv.wrap … CMD` run instead of CMD.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from rlprof_ops import backends, env_names, trainers
from rlprof_ops.backends.contract import wrap_of
from rlprof_ops.backends.wrapping import CannotWrap, Command, Identity
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.job.knobs import python_path
from rlprof_ops.rayenv.wrap.wrap_context import specs_for
from rlprof_ops.runtime.process.launchers import launcher_of

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec, ProfileRequest

TRAINER = "trainer"


def wrapped_command(
    worker: str | None,
    rank: int | None,
    argv: Sequence[str],
    request: ProfileRequest | None,
    env: Mapping[str, str],
) -> Command:
    """CMD as the request wants it: under the profiler of its first capture that needs that, or as it is.

    Args:
        worker: None for a trainer whose adapter names it; it counts as `trainer` here.
        argv: the program and its arguments; never seen by a shell.

    A launcher of ranks is run as it is: each of its ranks comes here by itself.

    Raises `UsageError` for options that the tool refuses, `RlprofError` when a selected process cannot be
    profiled here and its capture has `on_error: fail`.
    """
    full = dict(env)
    if env.get(env_names.ADAPTERS, "1") != "0":
        full["PYTHONPATH"] = python_path(env.get("PYTHONPATH"))
        full.update(trainers.environment())
    if launcher_of(argv):
        return _launcher(worker, argv, request, full)
    identity = Identity(worker or TRAINER, rank)
    specs = specs_for(request, worker or TRAINER, rank, env)
    if worker or specs:
        full |= {env_names.WORKER: worker or TRAINER, env_names.RANK: "" if rank is None else str(rank)}
    for spec in specs:
        full.update(spec.env)
    if specs and request:
        full[env_names.REQUEST_JSON] = request.to_json()
    for spec in specs:
        _check(spec)
        wrap = wrap_of(backends.get(spec.backend))
        if wrap is None:
            continue
        try:
            return wrap.make(identity, spec, full, full).command(argv, full)
        except CannotWrap as error:
            if spec.on_error == "fail":
                raise RlprofError(f"{identity} cannot be profiled: {error}") from None
            full[env_names.NOT_WRAPPED] = str(error)
    return Command(tuple(argv), full)


def _launcher(
    worker: str | None, argv: Sequence[str], request: ProfileRequest | None, env: dict[str, str]
) -> Command:
    """The launcher with what its ranks need to wrap themselves (`launchers.wrap_this_rank`)."""
    for spec in specs_for(request, worker or TRAINER, None, env):
        _check(spec)
        env[env_names.WRAP_RANKS] = worker or TRAINER
        env["PYTHONPATH"] = python_path(env.get("PYTHONPATH"))
        if request:
            env[env_names.REQUEST_JSON] = request.to_json()
    return Command(tuple(argv), env)


def _check(spec: CaptureSpec) -> None:
    errors = backends.validate(spec).errors
    if errors:
        raise UsageError("; ".join(errors))


class CannotRun(RlprofError):
    """A program that cannot be started; the exit code is a shell's."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"cannot run {program!r}: {error.strerror or error}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


def run(made: Command) -> NoReturn:
    """Become the command; stay its parent where the tool hides the exit code.

    Raises `CannotRun` for a program that cannot be started.
    """
    try:
        if made.exit_code_file is None:
            sys.stdout.flush()
            os.execvpe(made.argv[0], made.argv, made.env)
        sys.exit(_supervise(made, made.exit_code_file))
    except OSError as error:
        raise CannotRun(made.argv[0], error) from None


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
